# SPDX-License-Identifier: Apache-2.0
"""Rows that a sparse allreduce has made unique are not searched for duplicates once more."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from linear_loss import ROWS, loss_of, make_variables, slopes_of

import hvd_tf
from hvd_tf import keras as hvd_keras

RANKS = (2,)

v1 = tf.compat.v1
IS_KERAS_3 = not hasattr(tf.keras.optimizers.Adam, "compute_gradients")
needs_keras_2 = pytest.mark.skipif(IS_KERAS_3, reason="of Keras 2 only")


def kinds_of(graph):
    return {op.type for op in graph.get_operations()}


def optimizer_of_tf_1():
    return hvd_tf.DistributedOptimizer(v1.train.AdagradOptimizer(0.3))


@pytest.mark.parametrize("uses_resources", [True, False])
@pytest.mark.parametrize("clips", [True, False])
def test_an_optimizer_of_tf_1(rank, uses_resources, clips):
    with tf.Graph().as_default() as graph:
        with v1.variable_scope("", use_resource=uses_resources):
            variables = make_variables()
        optimizer = optimizer_of_tf_1()
        pairs = optimizer.compute_gradients(loss_of(rank, *variables))
        if clips:
            pairs = [(tf.clip_by_norm(gradient, 0.1), variable) for gradient, variable in pairs]
        optimizer.apply_gradients(pairs)
    assert "HorovodSparseAllreduce" in kinds_of(graph)
    assert "Unique" not in kinds_of(graph)


def test_the_norm_is_that_of_the_dense_gradient(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        dense, table = make_variables()
        pairs = optimizer_of_tf_1().compute_gradients(loss_of(rank, dense, table), [table])
        norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
        session.run(v1.global_variables_initializer())
        expected = np.zeros((ROWS, 2))
        for other in range(size):
            _, rows, weights = slopes_of(other)
            np.add.at(expected, rows, weights / size)
        np.testing.assert_allclose(session.run(norm), np.linalg.norm(expected), rtol=1e-12)


def test_duplicates_that_a_program_makes_are_added_up():
    with tf.Graph().as_default() as graph, v1.Session() as session:
        table = v1.get_variable("table", initializer=np.ones((3, 2)))
        inner = v1.train.AdagradOptimizer(1.0, initial_accumulator_value=1.0)
        optimizer = hvd_tf.DistributedOptimizer(inner)
        slices = tf.IndexedSlices(tf.ones([3, 2], tf.float64), tf.constant([1, 0, 1]))
        update = optimizer.apply_gradients([(slices, table)])
        assert "Unique" in kinds_of(graph)
        assert "_resource_apply_sparse_duplicate_indices" not in vars(inner)
        session.run(v1.global_variables_initializer())
        session.run(update)
        steps = np.array([1, 2, 0]) / np.sqrt([2, 5, 1])
        np.testing.assert_allclose(session.run(table), np.ones((3, 2)) - steps[:, None])


@needs_keras_2
@pytest.mark.parametrize("family", ["new", "legacy"])
@pytest.mark.parametrize("kind", ["Adagrad", "SGD"])
def test_an_optimizer_of_keras_2(rank, family, kind):
    module = tf.keras.optimizers if family == "new" else tf.keras.optimizers.legacy
    optimizer = hvd_keras.DistributedOptimizer(getattr(module, kind)(0.1))
    table = tf.Variable(np.ones((5, 2)), name="table")

    @tf.function
    def step():
        def loss():
            return tf.reduce_sum(tf.gather(table, [rank, 3, rank]))

        optimizer.minimize(loss, [table], **({} if family == "legacy" else {"tape": None}))

    graph = step.get_concrete_function().graph
    assert "HorovodSparseAllreduce" in kinds_of(graph)
    assert "Unique" not in kinds_of(graph)
