# SPDX-License-Identifier: Apache-2.0
"""A variable of TF 1 that a partitioner has cut, wherever a variable is an argument."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3,)

v1 = tf.compat.v1
PARTS = 3


def partitioned(value, use_resource=True):
    return v1.get_variable(
        "table",
        [6, 2],
        initializer=v1.constant_initializer(value),
        partitioner=v1.fixed_size_partitioner(PARTS),
        use_resource=use_resource,
    )


def step(optimizer, table):
    """The table after a step of a loss whose slope is this rank's number and 1."""
    update = optimizer.minimize(tf.reduce_sum(tf.convert_to_tensor(table)) * (hvd.rank() + 1.0))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(update)
        return session.run(tf.convert_to_tensor(table))


@pytest.mark.parametrize("use_resource", [True, False])
@pytest.mark.parametrize("inplace", [False, True])
def test_it_is_broadcast(rank, size, inplace, use_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        table = partitioned(float(rank), use_resource)
        synced = hvd.broadcast_variables([table, *table], size - 1, inplace=inplace)
        session.run(v1.global_variables_initializer())
        session.run(synced)
        np.testing.assert_array_equal(session.run(tf.convert_to_tensor(table)), size - 1)


@pytest.mark.parametrize("use_resource", [True, False])
def test_it_is_broadcast_in_place(rank, size, use_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        table = partitioned(float(rank), use_resource)
        plain = v1.get_variable("plain", [], initializer=v1.constant_initializer(float(rank)))
        values = hvd.broadcast_([table, plain] if use_resource else [table], size - 1)
        assert len(values) == PARTS + use_resource
        session.run(v1.global_variables_initializer())
        for value in session.run(values):
            np.testing.assert_array_equal(value, size - 1)
        np.testing.assert_array_equal(session.run(tf.convert_to_tensor(table)), size - 1)


def test_it_is_local(rank, size):
    with tf.Graph().as_default():
        table = partitioned(0.0)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        optimizer.register_local_var(table)
        np.testing.assert_allclose(step(optimizer, table), -(rank + 1) / size)


def test_it_is_in_a_group(size):
    with tf.Graph().as_default() as graph:
        table = partitioned(0.0)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), groups=[[table]]
        )
        np.testing.assert_allclose(step(optimizer, table), -(size + 1) / 2)
        counts = [
            operation.get_attr("num_tensors")
            for operation in graph.get_operations()
            if operation.type == "HorovodGroupedAllreduce"
        ]
        assert counts == [PARTS]


def test_twice_in_groups():
    with tf.Graph().as_default():
        table = partitioned(0.0)
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        with pytest.raises(ValueError, match="table/part_1.*twice"):
            hvd.DistributedOptimizer(optimizer, groups=[[table], [list(table)[1]]])
