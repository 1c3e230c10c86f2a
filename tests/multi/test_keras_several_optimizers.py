# SPDX-License-Identifier: Apache-2.0
"""A model whose train_step has an optimizer for each of its parts, such as a GAN."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
from small_fit import FAMILIES, IS_KERAS_3

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
ROWS = 4


class TwoParts(keras.Model):
    """`compile` takes an optimizer for each part, as Keras' own examples have it."""

    reduces = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = [keras.Sequential([keras.Input([3]), keras.layers.Dense(1)]) for _ in "ab"]

    def compile(self, a_optimizer, b_optimizer):
        super().compile(jit_compile=False)
        self.a_optimizer, self.b_optimizer = a_optimizer, b_optimizer

    def train_step(self, batch):
        inputs, wanted = batch
        for part, optimizer in zip(self.parts, (self.a_optimizer, self.b_optimizer)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((part(inputs, training=True) - wanted) ** 2)
            if self.reduces and not IS_KERAS_3:
                optimizer.minimize(loss, part.trainable_variables, tape=tape)
            else:
                gradients = tape.gradient(loss, part.trainable_variables)
                optimizer.apply_gradients(zip(gradients, part.trainable_variables))
        return {"loss": loss}


def make(family, wrap, cls=TwoParts, rate=0.05):
    keras.utils.set_random_seed(1)
    optimizers = keras.optimizers.legacy if family == "legacy" else keras.optimizers
    model = cls()
    made = [wrap(optimizers.SGD(rate * times, momentum=0.9)) for times in (1, 2)]
    model.compile(*made)
    return model


def data(rank, size, batches=3):
    inputs = np.random.default_rng(5).standard_normal((batches, size, ROWS, 3)).astype(np.float32)
    wanted = inputs.sum(axis=-1, keepdims=True)
    if rank is None:
        return inputs.reshape(-1, 3), wanted.reshape(-1, 1)
    return inputs[:, rank].reshape(-1, 3), wanted[:, rank].reshape(-1, 1)


def weights_of(model):
    return [weight for part in model.parts for weight in part.get_weights()]


def fit(model, rows, batch_size=ROWS, **arguments):
    return model.fit(*rows, batch_size=batch_size, shuffle=False, **{"verbose": 0, **arguments})


def warned_of(call):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in warned if "train apart" in str(one.message)]


@pytest.mark.parametrize("family", FAMILIES)
def test_both_reduce(hvd, rank, size, family):
    model = make(family, hvd_keras.DistributedOptimizer)
    apart = warned_of(lambda: fit(model, data(rank, size), epochs=2))
    alone = make(family, lambda optimizer: optimizer)
    fit(alone, data(None, size), size * ROWS, epochs=2)
    for theirs in hvd.allgather_object(weights_of(model)):
        for got, expected in zip(theirs, weights_of(alone)):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    assert apart == []


@pytest.mark.skipif(IS_KERAS_3, reason="its optimizers reduce in apply_gradients")
@pytest.mark.parametrize("family", FAMILIES)
def test_each_that_does_not_reduce_is_told(hvd, rank, size, family):
    class Apart(TwoParts):
        reduces = False

    model = make(family, hvd_keras.DistributedOptimizer, Apart)
    assert len(warned_of(lambda: fit(model, data(rank, size)))) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_one_rank_writes(hvd, rank, size, family, tmp_path):
    path = hvd.broadcast_object(str(tmp_path / "log.csv"), 0)
    log = keras.callbacks.CSVLogger(path)
    fit(make(family, hvd_keras.DistributedOptimizer), data(rank, size), callbacks=[log])
    assert (log.model is not None) == (rank == 0)


def test_unequal_batches(hvd, rank, size):
    model = make("new", hvd_keras.DistributedOptimizer)
    callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    with pytest.raises(ValueError, match="rank 1 begins fit with 4 batches"):
        fit(model, data(rank, size, 3 + rank), callbacks=[callback])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("wrap", [hvd_keras.DistributedOptimizer, lambda optimizer: optimizer])
def test_the_broadcast_takes_all_optimizers(hvd, rank, size, family, wrap):
    model = make(family, wrap, rate=0.0)
    fit(model, data(0, size))  # makes the slots
    optimizers = (model.a_optimizer, model.b_optimizer)
    for optimizer in optimizers:
        slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        for variable in slots:
            if tuple(variable.shape) == (3, 1):
                variable.assign(np.full((3, 1), 1.0 + rank))
    callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(model, [rows[:ROWS] for rows in data(0, size)], callbacks=[callback])
    slots = [
        np.asarray(variable)
        for optimizer in optimizers
        for variable in (
            optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        )
        if tuple(variable.shape) == (3, 1)
    ]
    assert len(slots) == 2
    for theirs in hvd.allgather_object(slots):
        np.testing.assert_array_equal(theirs, slots)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no such model")
def test_a_list_of_optimizers(hvd, rank, size):
    parts = [keras.Sequential([keras.Input([3]), keras.layers.Dense(1)]) for _ in "ab"]
    model = keras.experimental.WideDeepModel(*parts)
    legacy = keras.optimizers.legacy
    used = [hvd_keras.DistributedOptimizer(legacy.SGD(0.1)) for _ in parts]
    model.compile(used, "mse")
    callback = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    apart = warned_of(lambda: fit(model, data(rank, size), callbacks=[callback]))
    assert len(apart) == 2
