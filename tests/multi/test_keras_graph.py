# SPDX-License-Identifier: Apache-2.0
"""Keras 2 in a program of TF 1, whose graph Keras runs in a session of its own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf import keras as hvd_keras
from hvd_tf.exceptions import HorovodInternalError
from hvd_tf.keras import callbacks

RANKS = (2,)
ALONE = True  # nothing is eager in this process from here on

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
pytestmark = pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no graphs of TF 1")
if not IS_KERAS_3:
    tf.compat.v1.disable_eager_execution()

ROWS, STEPS = 8, 4
X = np.random.default_rng(7).standard_normal((STEPS * ROWS, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)


def sgd(rate=0.1, momentum=0.9):
    return keras.optimizers.legacy.SGD(rate, momentum=momentum)


def make_model(start, optimizer):
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(3,))])
    model.set_weights([np.full((3, 1), start, np.float32), np.zeros(1, np.float32)])
    model.compile(optimizer, "mse")
    return model


def fit(model, *used, epochs=1):
    return model.fit(
        X, Y, batch_size=ROWS, epochs=epochs, shuffle=False, verbose=0, callbacks=list(used)
    )


def check_alike(model):
    for weights in model.get_weights():
        everyones = hvd_keras.allgather(weights[np.newaxis])
        for theirs in everyones:
            np.testing.assert_array_equal(theirs, weights)


def test_the_callback_broadcasts(rank):
    model = make_model(float(rank), hvd_keras.DistributedOptimizer(sgd()))
    fit(model, callbacks.BroadcastGlobalVariablesCallback(0))
    check_alike(model)


def test_broadcast_global_variables(rank):
    model = make_model(float(rank + 1), hvd_keras.DistributedOptimizer(sgd()))
    hvd_keras.broadcast_global_variables(0)
    check_alike(model)
    np.testing.assert_array_equal(model.get_weights()[0], np.ones((3, 1)))
    fit(model)
    check_alike(model)


@pytest.mark.parametrize("correction", [False, True])
def test_learning_rates(size, correction):
    """Ranks with equal data are one process, whose rate is set by hand."""
    distributed = make_model(0.0, hvd_keras.DistributedOptimizer(sgd(0.1)))
    used = callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 0.5**epoch, momentum_correction=correction
    )
    history = fit(distributed, used, epochs=3)
    np.testing.assert_allclose(history.history["lr"], [0.1, 0.05, 0.025], rtol=1e-6)

    alone = make_model(0.0, sgd(0.1))
    for epoch in range(3):
        keras.backend.set_value(alone.optimizer.learning_rate, 0.1 * 0.5**epoch)
        if correction and epoch:
            for slot in alone.optimizer.weights[1:]:
                keras.backend.set_value(slot, keras.backend.get_value(slot) * 0.5)
        fit(alone)
    for got, expected in zip(distributed.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [STEPS, None])
def test_a_warm_up_ends_at_the_rate(size, steps):
    """In a graph Keras tells how many samples and how large a batch, but no steps."""
    model = make_model(0.0, hvd_keras.DistributedOptimizer(sgd(0.2)))
    warm_up = callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2, steps_per_epoch=steps)
    history = fit(model, warm_up, epochs=3)
    assert warm_up.steps_per_epoch == STEPS
    assert history.history["lr"][0] < 0.2
    np.testing.assert_allclose(history.history["lr"][-1], 0.2, rtol=1e-6)


def test_several_passes_are_refused():
    optimizer = hvd_keras.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="backward_passes_per_step=2 .* graph of TF 1"):
        fit(make_model(0.0, optimizer))


def of_tensorflow(model, batch):
    backend = tf.compat.v1.keras.backend
    return hvd_tf.elastic.TensorFlowKerasState(model, backend=backend, batch=batch)


@pytest.mark.parametrize("make", [of_tensorflow, hvd_keras.elastic.KerasState])
def test_an_elastic_state(rank, size, make):
    """Weights, momentum and iterations are those of a process that was never interrupted."""
    alone = make_model(0.0, sgd())
    fit(alone)
    of_commit = [*alone.get_weights(), *alone.optimizer.get_weights()]
    fit(alone)

    model = make_model(float(rank), hvd_keras.DistributedOptimizer(sgd()))
    state = make(model, batch=rank)
    model.set_weights([np.full((3, 1), 9.0, np.float32), np.ones(1)])
    state.restore()
    np.testing.assert_array_equal(model.get_weights()[0], np.full((3, 1), rank))
    state.sync()
    np.testing.assert_array_equal(model.get_weights()[0], np.zeros((3, 1)))
    assert state.batch == 0

    def check(expected):
        got = [*model.get_weights(), *model.optimizer.get_weights()]
        assert len(got) == len(expected) == 5
        for one, other in zip(got, expected):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)

    fit(model)
    state.batch = STEPS
    state.commit()
    fit(model)
    state.batch = 2 * STEPS
    state.restore()
    check(of_commit)
    assert state.batch == STEPS
    fit(model)
    if rank:
        model.set_weights([np.full((3, 1), 5.0, np.float32), np.ones(1)])
        model.optimizer.set_weights([np.zeros_like(w) for w in model.optimizer.get_weights()])
        state.batch = 17
    state.sync()
    check([*alone.get_weights(), *alone.optimizer.get_weights()])
    assert state.batch == STEPS


def test_elastic_training(rank, size):
    """A rank fails in its second epoch, and all go on from the first one's end."""
    alone = make_model(0.0, sgd())
    fit(alone, epochs=3)
    model = make_model(float(rank), hvd_keras.DistributedOptimizer(sgd()))
    state = hvd_keras.elastic.KerasState(model, epoch=0)
    begun = []

    @hvd_keras.elastic.run
    def train(state):
        while state.epoch < 3:
            begun.append(state.epoch)
            if len(begun) == 2 and rank == size - 1:
                raise HorovodInternalError
            fit(model)
            state.epoch += 1
            state.commit()

    train(state)
    assert begun == [0, 1, 1, 2]
    for got, expected in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


class Backend:
    """A module of Keras with a session of its own."""

    def __init__(self, session):
        self._session = session

    def get_session(self):
        with self._session.as_default():
            return tf.compat.v1.keras.backend.get_session()


def test_an_elastic_state_of_another_graph(rank):
    """It is used where its graph is not the default one."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        model = make_model(float(rank), hvd_keras.DistributedOptimizer(sgd()))
        state = hvd_keras.elastic.KerasState(model, backend=Backend(session), batch=rank)
        with tf.Graph().as_default():
            state.sync()
            state.commit()
        np.testing.assert_array_equal(session.run(model.variables[0]), np.zeros((3, 1)))
        assert state.batch == 0
