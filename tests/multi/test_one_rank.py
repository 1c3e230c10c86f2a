# SPDX-License-Identifier: Apache-2.0
"""Alone in its job a rank trains as without the library: nothing is added to its graph."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

RANKS = (1,)

v1 = tf.compat.v1
train = v1.train


def build(wrap):
    """Operation types of a training graph, and its weights after three steps."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        dense = v1.get_variable("dense", initializer=np.ones(3))
        table = v1.get_variable("table", initializer=np.ones((4, 2)))
        loss = tf.reduce_sum(dense**2) + tf.reduce_sum(tf.gather(table, [1, 1, 2]) ** 2)
        update = wrap(train.AdagradOptimizer(0.1)).minimize(loss)
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(update)
        kinds = Counter(operation.type for operation in graph.get_operations())
        return kinds, session.run([dense, table])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"op": hvd_tf.Sum},
        {"gradient_predivide_factor": 2.0},
        {"groups": 1},
        {"compression": hvd_tf.Compression.fp16},
    ],
)
def test_the_graph_is_the_plain_one(arguments):
    kinds, weights = build(lambda o: hvd_tf.DistributedOptimizer(o, **arguments))
    plain_kinds, plain_weights = build(lambda o: o)
    assert kinds == plain_kinds
    for got, want in zip(weights, plain_weights):
        np.testing.assert_array_equal(got, want)


def test_accumulation_and_local_variables_work_alone():
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(2))
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        optimizer.register_local_var(weights)
        update = optimizer.minimize(tf.reduce_sum(weights * [1.0, 2.0]))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for _ in range(5):
            session.run(update)
        assert session.run(weights).tolist() == [-4.0, -8.0]


def test_functions_and_hook():
    variable = tf.Variable([1.0, 2.0])
    hvd_tf.broadcast_variables([variable], 0)
    assert variable.numpy().tolist() == [1.0, 2.0]
    assert hvd_tf.broadcast_object({"a": 1}) == {"a": 1}
    assert hvd_tf.allgather_object(7) == [7]
    with tf.Graph().as_default() as graph:
        weights = v1.get_variable("weights", initializer=3.0)
        with train.MonitoredTrainingSession(hooks=[hvd_tf.BroadcastGlobalVariablesHook(0)]) as s:
            assert s.run(weights) == 3.0
        assert not any(o.type.startswith("Horovod") for o in graph.get_operations())
