# SPDX-License-Identifier: Apache-2.0
"""Operations of one name in a graph, and what TensorFlow changes in the graph of one rank alone."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from modes import late

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2,)
v1 = tf.compat.v1


def delays(count, rank):
    """Seconds: the calls of rank 0 begin in their order, those of rank 1 the other way round."""
    places = range(count) if rank % 2 == 0 else range(count - 1, -1, -1)
    return [0.1 * place for place in places]


def total(size):
    return size * (size + 1) / 2  # of what the ranks multiply by


def test_a_function_is_called_several_times(rank, size):
    w = tf.Variable(tf.ones([3]))

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [w])[0]

    @tf.function
    def step(x):
        parts = [gradient(late(x * 10.0**i, s)) for i, s in enumerate(delays(3, rank))]
        # More than ten: "call_10" comes behind "call_9".
        return parts + [gradient(x * float(i)) for i in range(3, 14)]

    wanted = [1.0, 10.0, 100.0] + [float(i) for i in range(3, 14)]
    for _ in range(3):
        got = step(tf.fill([3], rank + 1.0))
        np.testing.assert_allclose(got, [[total(size) * one] * 3 for one in wanted])


def test_a_rank_has_further_functions(rank, size):
    @tf.function
    def reduced(x):
        return hvd.allreduce(x, op=hvd.Sum, name="w", ignore_name_scope=True)

    @tf.function
    def told(x):
        return x + 1.0

    @tf.function
    def step(x):
        if rank == 0:
            x = told(x) - 1.0
        return [reduced(late(x * 10.0**i, s)) for i, s in enumerate(delays(2, rank))]

    got = step(tf.constant(rank + 1.0))
    np.testing.assert_allclose(got, [total(size), 10 * total(size)])


@pytest.mark.parametrize("inplace", [False, True])
def test_variables_of_one_name(inplace, rank):
    first, second = (tf.Variable(float(factor * (rank + 1)), name="x") for factor in (1, 10))

    @tf.function
    def start():
        for variable, seconds in zip((first, second), delays(2, rank)):
            with tf.control_dependencies([variable.assign_add(late(tf.constant(0.0), seconds))]):
                hvd.broadcast_variables([variable], 0, inplace=inplace)

    start()
    assert (first.numpy(), second.numpy()) == (1.0, 10.0)


def test_a_rank_traces_again(rank, size):
    generator, critic = tf.Variable([1.0], name="generator"), tf.Variable([1.0], name="critic")

    def train(variable, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(variable * x)
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [variable])
        variable.assign_sub(gradient)

    train_generator = tf.function(lambda: train(generator, tf.ones([8])))
    train_critic = tf.function(lambda x: train(critic, x))

    @tf.function
    def step(x):
        train_generator()
        train_critic(x)

    for rows in (8, 8, 8 if rank == 0 else 5):
        step(tf.ones([rows]))
    assert (generator.numpy(), critic.numpy()) == (-2.0, -2.0)


def test_one_name_in_a_loop_of_python(rank, size):
    def verbs(x):
        several = [
            hvd.allreduce(late(x * 10.0**i, s), op=hvd.Sum, name="w:0", ignore_name_scope=True)
            for i, s in enumerate(delays(3, rank))
        ]
        slices = tf.IndexedSlices(tf.reshape(x, [1, 1]), [0], [1, 1])
        dense, sparse = hvd.grouped_allreduce([x, slices], op=hvd.Sum, name="b:0")
        return [*several, dense, tf.reshape(sparse.values, [])]

    wanted = [total(size) * factor for factor in (1, 10, 100, 1, 1)]
    np.testing.assert_allclose(tf.function(verbs)(tf.constant(rank + 1.0)), wanted)
    with tf.Graph().as_default(), v1.Session() as session:
        np.testing.assert_allclose(session.run(verbs(tf.constant(rank + 1.0))), wanted)


def test_a_name_that_looks_like_a_number_of_another(rank, size):
    def verbs(x):
        order = ["w@1", "w", "w", "w@2@1", "w@2", "w", "w@2"]
        wait = delays(len(order), rank)
        return [
            hvd.allreduce(late(x * 10.0**i, wait[i]), op=hvd.Sum, name=name, ignore_name_scope=True)
            for i, name in enumerate(order)
        ]

    wanted = [total(size) * 10.0**i for i in range(7)]
    np.testing.assert_allclose(tf.function(verbs)(tf.constant(rank + 1.0)), wanted)
    with tf.Graph().as_default(), v1.Session() as session:
        np.testing.assert_allclose(session.run(verbs(tf.constant(rank + 1.0))), wanted)


def test_the_name_of_the_op_itself(rank, size):
    """By a node of that name TensorFlow's kernel would be taken for one of an eager call."""

    @tf.function
    def total_of(x):
        return hvd.allreduce(x, op=hvd.Sum, name="HorovodAllreduce")

    x = tf.constant(rank + 1.0)
    nodes = total_of.get_concrete_function(x).graph.as_graph_def().node
    names = [node.name for node in nodes if node.op == "HorovodAllreduce"]
    assert len(names) == 1 and names != ["HorovodAllreduce"]
    assert float(total_of(x)) == total(size)


def test_such_a_name_comes_into_a_session_later(rank, size):
    """With a function, which is inlined when the ops of the graph have their numbers."""

    @tf.function
    def inlined(y):
        return hvd.allreduce(y, op=hvd.Sum, name="w@1", ignore_name_scope=True)

    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant(rank + 1.0)
        wait = delays(3, rank)
        calls = [
            hvd.allreduce(late(x * 10.0**i, wait[i]), op=hvd.Sum, name="w", ignore_name_scope=True)
            for i in range(2)
        ]
        calls.append(inlined(late(x * 100.0, wait[2])))
        got = session.run(calls)
    np.testing.assert_allclose(got, [total(size) * 10.0**i for i in range(3)])


def test_gradients_twice_in_a_graph(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [2], initializer=v1.ones_initializer())
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Sum)
        gradients = []
        for i, seconds in enumerate(delays(3, rank)):
            x = late(tf.constant((rank + 1.0) * 10.0**i), seconds)
            ((gradient, _),) = optimizer.compute_gradients(tf.reduce_sum(w * x), [w])
            gradients.append(gradient)
        session.run(v1.global_variables_initializer())
        got = session.run(gradients)
    np.testing.assert_allclose(got, [[total(size) * 10.0**i] * 2 for i in range(3)])


def test_functions_of_a_session(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        w = tf.Variable(tf.ones([2]))

        def gradient(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w * x)
            return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, [w])[0]

        one = tf.function(gradient)
        two = tf.function(lambda x: (gradient(3.0 * x), gradient(4.0 * x)))
        x = tf.fill([2], rank + 1.0)
        fetched = [one(x), one(2.0 * x), *two(x), gradient(5.0 * x)]
        session.run(v1.global_variables_initializer())
        got = session.run(fetched)
    np.testing.assert_allclose(got, [[total(size) * factor] * 2 for factor in (1, 2, 3, 4, 5)])


def test_a_session_leaves_out_some(rank, size):
    def reduced(x, place):
        seconds = 0.2 * (place if rank % 2 == 0 else 1 - place)
        return hvd.allreduce(late(x, seconds), op=hvd.Sum, name="w:0", ignore_name_scope=True)

    with tf.Graph().as_default(), v1.Session() as session:
        x = tf.constant(rank + 1.0)
        first, _, third = [reduced(x * 10.0**i, max(i - 1, 0)) for i in range(3)]

        @tf.function
        def inlined(y):
            return hvd.allreduce(y, op=hvd.Sum, name="w:0", ignore_name_scope=True)

        got = session.run([first, third, inlined(late(x, 0.2 * (rank % 2)))])
    np.testing.assert_allclose(got, [total(size), 100 * total(size), total(size)])


def test_branches_of_a_conditional(rank, size):
    """One of them runs: on a rank without data perhaps the one that puts in zeros."""

    def reduced(x):
        return hvd.allreduce(x, op=hvd.Sum, name="w", ignore_name_scope=True)

    @tf.function
    def step(x, which):
        first = tf.cond(which > 0, lambda: reduced(x), lambda: reduced(tf.zeros_like(x)))
        cases = [
            lambda: reduced(reduced(2.0 * x)),
            lambda: reduced(reduced(3.0 * x)),
            lambda: tf.cond(x > 0, lambda: reduced(reduced(4.0 * x)), lambda: x),
        ]
        return first, tf.switch_case(which, cases), reduced(5.0 * x)

    for turn in range(3):
        which = [(r + turn) % 3 for r in range(size)]
        got = step(tf.constant(rank + 1.0), tf.constant(which[rank]))
        of_cases = size * sum((r + 1) * (2 + which[r]) for r in range(size))
        of_first = sum(r + 1 for r in range(size) if which[r] > 0)
        np.testing.assert_allclose(got, [of_first, of_cases, 5 * total(size)])


def test_equal_on_one_rank_alone(rank, size):
    """TensorFlow must not make one operation of two, where the inputs are equal here only."""

    @tf.function
    def constants():
        flags = [tf.constant(float(rank)), tf.constant(0.0)]
        return [hvd.allreduce(flag, op=hvd.Sum, name=f"flag{i}") for i, flag in enumerate(flags)]

    @tf.function
    def rows(a, b):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            loss = tf.reduce_sum(hvd.allgather(a)) + tf.reduce_sum(2.0 * hvd.allgather(b))
        return tape.gradient(loss, [a, b])

    np.testing.assert_allclose(constants(), [size * (size - 1) / 2, 0.0])
    a, b = rows(tf.ones([size - rank]), tf.ones([size]))
    np.testing.assert_allclose(a, [1.0] * (size - rank))  # the average of the ranks' gradients
    np.testing.assert_allclose(b, [2.0] * size)


def test_join_comes_after_a_loop(rank, size):
    @tf.function
    def evaluate(count, x):
        sums = tf.constant(0.0)
        for _ in tf.range(count):
            sums += hvd.allreduce(late(x, 0.05), op=hvd.Sum, name="loss")
        return sums, hvd.join()

    sums, last = evaluate(tf.constant(2 + rank), tf.constant(1.0))
    # In step i the ranks from i - 1 on are still there.
    assert sums == sum(size - max(0, step - 1) for step in range(2 + rank))
    assert last == size - 1


def test_a_barrier_comes_after_an_assignment(rank):
    variable = tf.Variable(0.0)
    came, passed = [], []  # when, by the clock that all ranks of a machine share

    def come(value):
        time.sleep(0.2 if rank == 0 else 0.0)
        came.append(time.clock_gettime(time.CLOCK_MONOTONIC))
        return value

    def see(value):
        passed.append(time.clock_gettime(time.CLOCK_MONOTONIC))
        return value

    @tf.function
    def step(x):
        variable.assign_add(tf.ensure_shape(tf.numpy_function(come, [x], tf.float32), []))
        with tf.control_dependencies([hvd.barrier()]):
            return tf.numpy_function(see, [variable.read_value()], tf.float32)

    assert step(tf.constant(1.0)) == 1.0
    everyones = np.array(hvd.allgather_object((came, passed)))
    assert everyones[:, 0].max() <= everyones[:, 1].min()
