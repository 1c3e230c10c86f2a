# SPDX-License-Identifier: Apache-2.0
"""Optimizers that a program has registered with Keras keep their names in saved models."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras

RANKS = (1, 2)

keras = tf.keras


@keras.utils.register_keras_serializable(package="tests")
class Mine(keras.optimizers.SGD):
    """Known to Keras by its registered name."""


@pytest.mark.parametrize("load", [keras.models.load_model, hvd_keras.load_model])
def test_the_file_loads_where_the_module_has_another_name(hvd, tmp_path, monkeypatch, load):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(Mine(0.1)), "mse")
    model.fit(np.ones([4, 3], np.float32), np.ones([4, 1], np.float32), verbose=0)
    path = str(tmp_path / "model.keras")
    with monkeypatch.context() as patched:
        patched.setattr(type(model.optimizer), "__module__", "elsewhere")
        model.save(path)
    assert isinstance(load(path).optimizer, Mine)
