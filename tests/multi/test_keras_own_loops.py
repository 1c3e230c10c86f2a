# SPDX-License-Identifier: Apache-2.0
"""Callbacks that a loop of the program's own calls, instead of `fit`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


def make_model(seed=0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input([3])
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def batch(rank):
    rng = np.random.default_rng([5, rank])
    return [rng.standard_normal((4, width)).astype(np.float32) for width in (3, 1)]


def test_a_loop_of_ones_own(hvd, rank, size):
    model = make_model(seed=rank)
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    used = [
        callbacks.BroadcastGlobalVariablesCallback(0),
        callbacks.LearningRateWarmupCallback(0.05, steps_per_epoch=2),
        callbacks.MetricAverageCallback(),
    ]
    loop = keras.callbacks.CallbackList(used, model=model)
    loop.on_train_begin()
    loop.on_epoch_begin(0)
    for step in range(2):
        loop.on_train_batch_begin(step)
        model.train_on_batch(*batch(rank))
        loop.on_train_batch_end(step)
    loop.on_epoch_end(0, {})
    loop.on_train_end()
    everyones = hvd.allgather_object([weight.numpy() for weight in model.trainable_variables])
    for theirs in everyones:
        for got, expected in zip(theirs, everyones[0]):
            np.testing.assert_array_equal(got, expected)


def test_a_loop_that_tells_of_batches_only(hvd, rank, size):
    """As Horovod's callback allows. Ranks do not meet at the ends then."""
    model = make_model(seed=rank)
    broadcast = callbacks.BroadcastGlobalVariablesCallback(0)
    broadcast.set_model(model)
    broadcast.on_train_batch_end(0)
    if rank == 0:
        broadcast.on_epoch_end(0)
        broadcast.on_train_end()
    everyones = hvd.allgather_object(model.get_weights())
    np.testing.assert_array_equal(model.get_weights()[0], everyones[0][0])


def test_a_rate_without_the_number_of_steps(hvd):
    model = make_model()
    warm_up = callbacks.LearningRateWarmupCallback(0.05)
    warm_up.set_model(model)
    with pytest.raises(ValueError, match="needs steps_per_epoch=: how many batches"):
        warm_up.on_train_begin()
