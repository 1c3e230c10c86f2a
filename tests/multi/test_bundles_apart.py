# SPDX-License-Identifier: Apache-2.0
"""Small allreduces do not share a kernel where one may be what another waits for.

Edges of the graph do not show it: the way is through the program, a lock, a queue or a function.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function
from test_bundles import bundles_of, nodes_of

import hvd_tf as hvd

RANKS = (2,)
TIMEOUT_S = 60
v1 = tf.compat.v1


def total(size):
    return size * (size + 1) / 2  # of what the ranks multiply by


def test_a_partial_run_is_fed_with_the_first_result(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = (v1.placeholder(tf.float32, [2]) for _ in range(2))
        first = hvd.allreduce(x, op=hvd.Sum, name="first")
        second = hvd.allreduce(2.0 * y, op=hvd.Sum, name="second")
        handle = session.partial_run_setup([first, second], [x, y])
        got = session.partial_run(handle, first, {x: [rank + 1.0] * 2})
        np.testing.assert_allclose(got, [total(size)] * 2)
        got = session.partial_run(handle, second, {y: got})
        np.testing.assert_allclose(got, [2.0 * size * total(size)] * 2)


def test_a_rank_makes_the_calls_of_a_partial_run_one_by_one(rank, size):
    """Between two of them it needs what the others fetch first."""

    def between(first):
        return hvd.allreduce(first, op=hvd.Sum, name="between")

    if rank == 0:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [])
            sums = [hvd.allreduce(x * i, op=hvd.Sum, name=f"part{i}") for i in (1, 2)]
        session = v1.Session(graph=graph)  # no `with`: it would make the graph the default one
        handle = session.partial_run_setup(sums, [x])
        one = session.partial_run(handle, sums[0], {x: 1.0})
        doubled = between(one)
        two = session.partial_run(handle, sums[1])
        session.close()
    else:
        one = hvd.allreduce(rank + 1.0, op=hvd.Sum, name="part1")
        doubled = between(one)
        two = hvd.allreduce(2.0 * (rank + 1.0), op=hvd.Sum, name="part2")
    np.testing.assert_allclose([one, doubled, two], [total(size) * f for f in (1, size, 2)])


def test_a_lock_is_free_when_the_sum_before_is_there(rank, size):
    @tf.function
    def step(x):
        section = tf.CriticalSection(name="section")
        return [
            section.execute(lambda i=i: hvd.allreduce(x * i, op=hvd.Sum, name=f"locked{i}"))
            for i in (1.0, 2.0, 3.0)
        ]

    got = step(tf.fill([2], rank + 1.0))
    np.testing.assert_allclose(got, [[i * total(size)] * 2 for i in (1, 2, 3)])


def test_a_queue_hands_a_sum_to_the_next_call(rank, size):
    """The last rank makes the calls one by one, in the order that the queue asks for."""

    def call(x, name):
        return hvd.allreduce(x, op=hvd.Sum, name=name)

    if rank < size - 1:
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder_with_default(rank + 1.0, [])
            queue = tf.queue.FIFOQueue(1, [tf.float32], [[]])
            put = queue.enqueue(call(x, "to_queue"))
            apart = call(x * 3.0, "apart")
            got = session.run([call(queue.dequeue(), "from_queue"), apart, put])
    else:
        one = call(rank + 1.0, "to_queue")
        got = [call(one, "from_queue"), call((rank + 1.0) * 3.0, "apart")]
    np.testing.assert_allclose(got[:2], [size * total(size), 3.0 * total(size)])


def test_the_type_of_a_node_is_the_function_that_it_calls(rank, size):
    """As in graphs of TensorFlow 1. What is in such a function is not seen."""

    @function.Defun(tf.float32, noinline=True)
    def reduced(x):
        return hvd.allreduce(x, op=hvd.Sum, name="within")

    with tf.Graph().as_default():
        x = v1.placeholder_with_default(tf.fill([2], rank + 1.0), [2])
        called = tf.reshape(reduced(x), [2])
        behind = hvd.allreduce(called * 2.0, op=hvd.Sum, name="behind")
        beside = [hvd.allreduce(x * i, op=hvd.Sum, name=f"beside{i}") for i in (3.0, 4.0)]
        config = v1.ConfigProto()  # else TensorFlow optimizes the node
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        got, nodes = nodes_of([behind, *beside], config=config)
    assert bundles_of(nodes) == [["beside3.0", "beside4.0"]]
    np.testing.assert_allclose(got, [[total(size) * f] * 2 for f in (2.0 * size, 3.0, 4.0)])


def test_a_loop_of_collectives_comes_behind(rank, size):
    """The last rank has the sum before the loop first, then the loop's, and then the other one."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y = (v1.placeholder(tf.float32, [2]) for _ in range(2))
        before = hvd.allreduce(x, op=hvd.Sum, name="before")
        looped = tf.while_loop(
            lambda i, _: i < 2,
            lambda i, value: (i + 1, hvd.allreduce(value, op=hvd.Sum, name="looped")),
            (tf.constant(0), before),
        )[1]
        beside = hvd.allreduce(3.0 * y, op=hvd.Sum, name="beside")
        values = [rank + 1.0] * 2
        if rank < size - 1:
            got = session.run([before, looped, beside], {x: values, y: values})
        else:
            first = session.run(before, {x: values})
            got = [first, session.run(looped, {before: first}), session.run(beside, {y: values})]
    np.testing.assert_allclose(got, [[f * total(size)] * 2 for f in (1.0, size**2, 3.0)])


def test_a_dataset_is_read_without_an_iterator(rank, size):
    """It has a collective, which the last rank comes to after one that others may bundle."""
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    dataset = tf.data.Dataset.from_tensors(rank + 1.0)
    dataset = dataset.map(lambda x: hvd.allreduce(x, op=hvd.Sum, name="of_dataset"))
    dataset = dataset.with_options(options)

    def call(x, name):
        return hvd.allreduce(x, op=hvd.Sum, name=name)

    @tf.function
    def step(x):
        return call(x, "alone"), call(x * dataset.get_single_element(), "with_data")

    x = tf.constant(rank + 1.0)
    if rank < size - 1:
        got = step(x)
    else:
        alone = call(x, "alone")
        got = alone, call(x * dataset.get_single_element(), "with_data")
    np.testing.assert_allclose(got, [total(size), total(size) ** 2])


def test_what_follows_a_trigger_always_runs(rank, size):
    """The trigger does not mind which branch it comes behind."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder_with_default(rank + 1.0, [])
        chosen = v1.placeholder(tf.bool, [])
        no, yes = tf.raw_ops.Switch(data=x, pred=chosen)
        taken = yes * 2.0
        with tf.control_dependencies([taken]):
            trigger = tf.raw_ops.ControlTrigger()
        with tf.control_dependencies([trigger]):
            follows = tf.identity(x)
        inside = hvd.allreduce(taken, op=hvd.Sum, name="inside")
        always = hvd.allreduce(follows * 3.0, op=hvd.Sum, name="always")
        end = tf.raw_ops.Merge(inputs=[no, inside]).output
        for turn in range(4):
            got = session.run([end, always], {chosen: turn % 2 == 0})
            expected = [2.0 * total(size) if turn % 2 == 0 else rank + 1.0, 3.0 * total(size)]
            np.testing.assert_allclose(got, expected)
