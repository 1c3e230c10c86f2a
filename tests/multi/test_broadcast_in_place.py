# SPDX-License-Identifier: Apache-2.0
"""`broadcast_` of variables of both kinds and every dtype."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modes import ALL_DTYPES, v1, values

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2,)
HOSTS = "2x2"
GPU = (2,)

SHAPES = [(), (1,), (0, 3), (5, 2, 3)]


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d not in ("uint16", "int16")])
def test_broadcast_resource_variables(dtype, rank, size):
    root = size - 1
    parts = [[values(dtype, shape, r) for shape in SHAPES] for r in range(size)]
    variables = [tf.Variable(part) for part in parts[rank]]
    before = [variable.read_value() for variable in variables]
    results = hvd.broadcast_(variables, root)
    for i, variable in enumerate(variables):
        np.testing.assert_array_equal(variable.numpy(), parts[root][i])
        np.testing.assert_array_equal(results[i].numpy(), parts[root][i])
        # Who has read the old value keeps it.
        np.testing.assert_array_equal(before[i].numpy(), parts[rank][i])


@pytest.mark.parametrize("in_function", [False, True])
def test_broadcast_variables_of_several_dtypes(in_function, rank, size):
    variables = [tf.Variable(np.float32([rank, 1])), tf.Variable(rank), tf.Variable(float(rank))]

    def call():
        return hvd.broadcast_(variables, 0)

    results = (tf.function(call) if in_function else call)()
    for variable, result, expected in zip(variables, results, ([0, 1], 0, 0.0)):
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(variable, expected)


@pytest.mark.parametrize("use_resource", [False, True])
def test_broadcast_variables_of_a_session(use_resource, rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable("a", initializer=np.float32([rank, 2]), use_resource=use_resource),
            v1.get_variable("b", initializer=np.float32(rank), use_resource=use_resource),
        ]
        synced = hvd.broadcast_(variables, size - 1, name="sync")
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            got = session.run(synced)
            np.testing.assert_array_equal(got[0], [size - 1, 2])
            np.testing.assert_array_equal(got[1], size - 1)
            np.testing.assert_array_equal(session.run(variables)[1], size - 1)


def test_resource_and_reference_variables_do_not_mix():
    with tf.Graph().as_default():
        variables = [
            v1.get_variable("a", initializer=1.0, use_resource=False),
            v1.get_variable("b", initializer=1.0, use_resource=True),
        ]
        with pytest.raises(ValueError, match="not both"):
            hvd.broadcast_(variables, 0)
