# SPDX-License-Identifier: Apache-2.0
"""The flights model of ../flights/model.py as a Keras model: will the flight be late?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1] / "flights"))

from features import CATEGORICAL
from model import CROSSES, EMBEDDINGS, HIDDEN, WIDE_ROWS, column, crossed

AVERAGED = 0.99  # what each step keeps of the moving average of the weights


class WideAndDeep(tf.keras.Model):
    """{"categorical": int32 [b, fields], "numeric": float32 [b, k]} -> logits, float32 [b]."""

    def __init__(self) -> None:
        super().__init__(name="wide_and_deep")
        layers = tf.keras.layers
        self.wide = layers.Embedding(
            len(CROSSES) * WIDE_ROWS, 1, embeddings_initializer="zeros", name="wide"
        )
        self.tables = [
            layers.Embedding(
                rows,
                width,
                embeddings_initializer=tf.keras.initializers.TruncatedNormal(stddev=0.05),
                name=name,
            )
            for name, (rows, width) in EMBEDDINGS.items()
        ]
        self.hidden = [
            layers.Dense(units, activation="swish", name=f"dense_{i}")
            for i, units in enumerate(HIDDEN)
        ]
        self.last = layers.Dense(1, name="last")

    def call(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """One logit for each flight."""
        categorical, fields = features["categorical"], list(CATEGORICAL)
        rows = [
            crossed(categorical, fields, names) % WIDE_ROWS + i * WIDE_ROWS
            for i, names in enumerate(CROSSES)
        ]
        wide = tf.reduce_sum(self.wide(tf.stack(rows, axis=1)), axis=[1, 2])
        deep = [features["numeric"]]
        for table, (name, (count, _)) in zip(self.tables, EMBEDDINGS.items()):
            deep.append(table(column(categorical, fields, name) % count))
        layer = tf.concat(deep, axis=1)
        for hidden in self.hidden:
            layer = hidden(layer)
        return wide + self.last(layer)[:, 0]


def adagrad(rate: float, steps: int) -> tf.keras.optimizers.Optimizer:
    """Adagrad with a rate that falls to 0, which keeps a moving average of the weights."""
    return tf.keras.optimizers.Adagrad(
        tf.keras.optimizers.schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0),
        # The default of 0.1 would all but freeze rows that few flights of a batch look up.
        initial_accumulator_value=1e-3,
        use_ema=True,
        ema_momentum=AVERAGED,
    )


def take_averages(model: tf.keras.Model, optimizer: Any) -> list[np.ndarray]:
    """Replaces the weights by their moving averages. Returns the weights, for `set_weights`.

    The weights of one step lean towards its last batches, so that AUC and log loss would jump
    between evaluations. Training goes on with the weights themselves.
    """
    weights = model.get_weights()
    optimizer.finalize_variable_values(model.trainable_variables)
    return weights
