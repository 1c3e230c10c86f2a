# SPDX-License-Identifier: Apache-2.0
"""A `train_step` of the program's own: does it reduce, and what is said where it does not?"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
from small_fit import FAMILIES, IS_KERAS_3

import hvd_tf
from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
ROWS = 4


def by_plain_tape(model, tape, loss):
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def by_distributed_tape(model, tape, loss):
    by_plain_tape(model, hvd_tf.DistributedGradientTape(tape), loss)


def by_minimize(model, tape, loss):
    model.optimizer.minimize(loss, model.trainable_variables, tape=tape)


def by_allreduce(model, tape, loss):
    gradients = tape.gradient(loss, model.trainable_variables)
    pairs = zip(hvd_tf.grouped_allreduce(gradients), model.trainable_variables)
    model.optimizer.apply_gradients(pairs)


def by_a_branch(model, tape, loss):
    """Applies what has been reduced before, in a graph of its own."""
    gradients = hvd_tf.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)

    def apply():
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return True

    tf.cond(loss >= 0.0, apply, lambda: False)


class OwnStep(keras.Model):
    update = None

    def train_step(self, batch):
        inputs, wanted = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(inputs, training=True) - wanted) ** 2)
        type(self).update(self, tape, loss)
        return {"loss": loss}


def fitted(hvd, rank, size, family, way, local=False, **compiled):
    """Every rank's weights after a `fit`, those of one process, and what was warned of.

    local: nothing is to be reduced.
    """

    def make(cls):
        keras.utils.set_random_seed(1)
        inputs = keras.Input([3])
        return cls(inputs, keras.layers.Dense(1)(inputs))

    optimizers = keras.optimizers.legacy if family == "legacy" else keras.optimizers
    model = make(type("OwnStep", (OwnStep,), {"update": way}))
    optimizer = hvd_keras.DistributedOptimizer(optimizers.SGD(0.05))
    for variable in model.trainable_variables if local else ():
        optimizer.register_local_var(variable)
    model.compile(optimizer, **compiled)
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((3, size, ROWS, 3)).astype(np.float32)
    wanted = inputs.sum(axis=-1, keepdims=True)
    mine = inputs[:, rank].reshape(-1, 3), wanted[:, rank].reshape(-1, 1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model.fit(*mine, batch_size=ROWS, shuffle=False, verbose=0)
    alone = make(keras.Model)
    alone.compile(optimizers.SGD(0.05), "mse")
    rows = inputs.reshape(-1, 3), wanted.reshape(-1, 1)
    alone.fit(*rows, batch_size=size * ROWS, shuffle=False, verbose=0)
    apart = [str(one.message) for one in warned if "train apart" in str(one.message)]
    return hvd.allgather_object(model.get_weights()), alone.get_weights(), apart


def check_equal(everyones, expected):
    for theirs in everyones:
        for got, alone in zip(theirs, expected):
            np.testing.assert_allclose(got, alone, rtol=1e-4, atol=1e-6)


WAYS = [by_distributed_tape, by_minimize, by_allreduce, by_a_branch]


@pytest.mark.skipif(IS_KERAS_3, reason="its optimizers reduce in apply")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_reduces(hvd, rank, size, family, way):
    everyones, expected, apart = fitted(hvd, rank, size, family, way)
    check_equal(everyones, expected)
    assert apart == []


@pytest.mark.skipif(IS_KERAS_3, reason="its optimizers reduce in apply")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("compiled", [{}, {"steps_per_execution": 3}])
def test_ranks_that_train_apart_are_told(hvd, rank, size, family, compiled):
    everyones, _, apart = fitted(hvd, rank, size, family, by_plain_tape, **compiled)
    assert not np.allclose(everyones[0][0], everyones[1][0])
    assert len(apart) == 1
    assert "distributed SGD, which does not reduce" in apart[0]
    assert "optimizer.minimize(loss, variables, tape=tape)" in apart[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_variables_that_stay_on_their_rank(hvd, rank, size, family):
    way = by_plain_tape if IS_KERAS_3 else by_minimize
    everyones, _, apart = fitted(hvd, rank, size, family, way, local=True)
    assert not np.allclose(everyones[0][0], everyones[1][0])
    assert apart == []


@pytest.mark.skipif(not IS_KERAS_3, reason="apply_gradients of Keras 2 does not reduce")
def test_a_plain_tape(hvd, rank, size):
    everyones, expected, apart = fitted(hvd, rank, size, "new", by_plain_tape)
    check_equal(everyones, expected)
    assert apart == []
