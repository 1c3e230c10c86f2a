# SPDX-License-Identifier: Apache-2.0
"""A small Keras model, rows of a rank, and a `fit` of them, for tests of callbacks."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
FAMILIES = ["new"] if IS_KERAS_3 else ["new", "legacy"]


def make_model(seed=0, dropout=0.0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input([3])
    x = keras.layers.Dense(4, activation="tanh")(inputs)
    x = keras.layers.BatchNormalization()(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def data(rank, rows=12):
    rng = np.random.default_rng([5, rank])
    x = rng.standard_normal((rows, 3)).astype(np.float32)
    return x, rng.standard_normal((rows, 1)).astype(np.float32)


def fit(model, rank, used, epochs=1, rows=12, **arguments):
    return model.fit(
        *data(rank, rows),
        batch_size=4,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=used,
        **arguments,
    )
