# SPDX-License-Identifier: Apache-2.0
"""Collectives in loops, branches and functions, where one rank's graph has more of something."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2,)
v1 = tf.compat.v1


def in_loop(reduced, x, flag):
    def once(i, y):
        return i + 1.0, reduced(y * flag)

    return tf.while_loop(lambda i, _: i < 2.0, once, [0.0, x], name="mine")[1]


def in_branch(reduced, x, flag):
    return tf.cond(flag > 0.0, lambda: reduced(reduced(x)), lambda: x, name="mine")


def in_switch(reduced, x, flag):
    branches = [lambda: x, lambda: reduced(reduced(x))]
    return tf.switch_case(tf.cast(flag, tf.int32), branches, name="mine")


def in_both(reduced, x, flag):
    def branch():
        return in_loop(reduced, x, flag)

    return tf.cond(flag > 0.0, branch, branch, name="outer")


def logged(x, flag, rank):
    """What rank 0 alone computes, as for a summary."""
    if rank != 0:
        return tf.zeros([])
    return tf.cond(flag > 0.0, lambda: tf.reduce_sum(x), lambda: tf.reduce_max(x), name="log")


@pytest.mark.parametrize("name", ["sum", None])
@pytest.mark.parametrize("place", [in_loop, in_branch, in_switch, in_both])
@pytest.mark.parametrize("mode", ["function", "session"])
def test_a_rank_has_further_branches(mode, place, name, rank, size):
    def reduced(y):
        return hvd.allreduce(y, op=hvd.Sum, name=name)

    def step(x, flag):
        return logged(x, flag, rank), place(reduced, x, flag), logged(x + 1.0, flag, rank)

    fed = np.full(3, rank + 1.0, np.float32), np.float32(1)
    if mode == "function":
        _, got, _ = tf.function(step, autograph=False)(*map(tf.constant, fed))
    else:
        with tf.Graph().as_default(), v1.Session() as session:
            places = [v1.placeholder(one.dtype, one.shape) for one in fed]
            _, got, _ = session.run(step(*places), dict(zip(places, fed)))
    np.testing.assert_array_equal(got, np.full(3, size * size * (size + 1) / 2))


@pytest.mark.parametrize("name", ["mine", None])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_rank_logs_in_a_function_within_a_function(calls, name, rank, size):
    """TensorFlow's own name of a call tells whether the function does anything but compute."""

    @tf.function(autograph=False)
    def inner(x):
        if rank == 0:
            tf.print("sum", tf.reduce_sum(x), output_stream="file://" + os.devnull)
        return hvd.allreduce(x, op=hvd.Sum, name=name)

    @tf.function(autograph=False)
    def outer(x):
        return [inner(x * (1.0 + call)) for call in range(calls)]

    found = outer(tf.constant(np.full(3, rank + 1.0, np.float32)))
    for call, got in enumerate(found):
        expected = (1.0 + call) * size * (size + 1) / 2
        np.testing.assert_array_equal(got, np.full(3, expected, np.float32))
