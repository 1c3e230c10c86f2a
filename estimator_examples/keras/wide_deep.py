# SPDX-License-Identifier: Apache-2.0
"""The flights model of ../flights/model.py as a Keras model: will the flight be late?"""

from __future__ import annotations

import sys
from pathlib import Path

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


def adagrad(rate: float, steps: int, evaluated_every: int) -> tf.keras.optimizers.Optimizer:
    """Adagrad with a rate that falls to 0, and weights that become their average now and then.

    The weights of one step lean towards its last batches. Before each evaluation, and at the end,
    they are replaced by their moving average.
    """
    return tf.keras.optimizers.Adagrad(
        tf.keras.optimizers.schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0),
        # The default of 0.1 would all but freeze rows that few flights of a batch look up.
        initial_accumulator_value=1e-3,
        use_ema=True,
        ema_momentum=AVERAGED,
        ema_overwrite_frequency=evaluated_every,
    )
