# SPDX-License-Identifier: Apache-2.0
"""What each rank counts, where one of them has failed before it came as far as the others."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras
from hvd_tf.exceptions import HorovodInternalError

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


def total(hvd, value):
    return hvd.allreduce(tf.constant(float(value)), op=hvd.Sum, name="total").numpy()


def first_time_on_the_last(hvd, tries):
    tries.append(1)
    if len(tries) == 1 and hvd.rank() == hvd.size() - 1:
        raise HorovodInternalError("an input that could not be opened this time")


def test_data_made_before_the_function(hvd, rank, size):
    unknown = tf.data.Dataset.range(3 + rank).filter(lambda x: x >= 0)
    dataset, tries = hvd.data.equal_steps(unknown), []

    @hvd.elastic.run
    def train(state):
        first_time_on_the_last(hvd, tries)
        return [[total(hvd, one.numpy()) for one in dataset] for _ in range(2)]

    assert train(hvd.elastic.ObjectState()) == [[0.0, size, 2.0 * size]] * 2


@pytest.mark.parametrize("family", ["keras", "v1"])
@pytest.mark.parametrize("begins_anew", ["elastic", "init"])
def test_an_optimizer_made_in_the_function(hvd, rank, size, family, begins_anew):
    """The failed rank has not come to its first reduction, in which the others wait."""
    weight, tries = tf.Variable(1.0), []

    def train(state):
        if family == "keras":
            optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
        else:
            plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
            optimizer = hvd.DistributedOptimizer(plain)
        first_time_on_the_last(hvd, tries)
        with tf.GradientTape() as tape:
            loss = weight * float(1 + rank)
        if family == "keras" and hasattr(optimizer, "apply"):  # Keras 3
            optimizer.apply(tape.gradient(loss, [weight]), [weight])
        else:
            optimizer.minimize(lambda: weight * float(1 + rank), var_list=[weight])
        return weight.numpy()

    if begins_anew == "elastic":
        result = hvd.elastic.run(train)(hvd.elastic.TensorFlowState([weight]))
    else:
        with pytest.raises((HorovodInternalError, tf.errors.UnknownError)):
            train(None)
        hvd.shutdown()
        hvd.init()
        result = train(None)
    np.testing.assert_allclose(result, 1 - 0.1 * (1 + size) / 2, rtol=1e-6)


def test_one_rank_clears_keras_session(hvd, rank, size):
    """As before it loads a model for something of its own."""
    for width in (1, 2):
        weight = tf.Variable(tf.ones([width]))
        plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        optimizer = hvd.DistributedOptimizer(plain)
        optimizer.minimize(lambda weight=weight: weight * float(1 + rank), var_list=[weight])
        np.testing.assert_allclose(weight.numpy(), 1 - 0.1 * (1 + size) / 2, rtol=1e-6)
        if rank == 0:
            keras.backend.clear_session()


@pytest.mark.skipif(
    not hasattr(keras.optimizers.Adam, "compute_gradients"), reason="Keras 3 has no minimize"
)
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_passes_of_an_optimizer_that_is_in_no_state(hvd, rank, size, mode):
    weight, tries = tf.Variable(1.0), []
    inner = keras.optimizers.legacy.SGD(0.1)
    optimizer = hvd_keras.DistributedOptimizer(inner, backward_passes_per_step=2)

    def step():
        optimizer.minimize(lambda: weight * float(1 + rank), [weight])

    step = tf.function(step) if mode == "function" else step

    @hvd.elastic.run
    def train(state):
        first_time_on_the_last(hvd, tries)
        for _ in range(3):
            step()
            total(hvd, 1)

    train(hvd.elastic.TensorFlowState([weight]))
    # Two of three passes make a step.
    np.testing.assert_allclose(weight.numpy(), 1 - 0.1 * (1 + size) / 2 * 2, rtol=1e-6)


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_passes_of_a_session(hvd, rank, size, op):
    tries = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=1.0)
        inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        optimizer = hvd.DistributedOptimizer(inner, op=getattr(hvd, op), backward_passes_per_step=2)
        step = optimizer.minimize(weight * 3.0, var_list=[weight])
        together = hvd.allreduce(tf.constant(1.0), name="together")
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.local_variables_initializer())

        @hvd.elastic.run
        def train(state):
            first_time_on_the_last(hvd, tries)
            for _ in range(2):
                session.run(step)
                session.run(together)

        train(hvd.elastic.TensorFlowState([weight], session))
        # Equal gradients count once with Adasum; the default is a sum over the passes.
        np.testing.assert_allclose(session.run(weight), 1 - 0.1 * 3 * 2, rtol=1e-6)
