# SPDX-License-Identifier: Apache-2.0
"""Collectives in graphs: many at once, in any order, in loops and branches, and of constants."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from modes import late, v1

import hvd_tf as hvd

RANKS = (3,)
IN_FULL = (2, "2x2")


def test_fifty_at_once(rank, size):
    @tf.function
    def step(x):
        return [hvd.allreduce(x + i, op=hvd.Sum) for i in range(50)]

    for _ in range(3):
        results = step(tf.constant([float(rank), 1.0]))
        for i, result in enumerate(results):
            np.testing.assert_array_equal(result, [sum(range(size)) + size * i, size * (1 + i)])


def test_results_are_written_to_only_where_nobody_reads_them(rank, size):
    # TensorFlow computes in place where an op is the last reader of its input.
    @tf.function
    def step(x):
        sums = [hvd.allreduce(x + i, op=hvd.Sum) for i in range(20)]
        return sums[:10], [3 * y - 1 for y in sums], [tf.square(y) for y in sums[5:]]

    expected = [sum(range(size)) + size * i for i in range(20)]
    for _ in range(3):
        sums, lines, squares = step(tf.constant([float(rank)] * 100))
        for got, want in zip(
            sums + lines + squares,
            [
                *expected[:10],
                *(3 * y - 1 for y in expected),
                *(y * y for y in expected[5:]),
            ],
        ):
            np.testing.assert_array_equal(got, [want] * 100)


def test_an_eager_call_on_the_only_thread_of_a_session(rank, size):
    # The graph's results wait for that thread, which waits for the eager call.
    def in_python(x):
        return hvd.allreduce(x, op=hvd.Sum, name="in_python")

    one_thread = v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.Graph().as_default(), v1.Session(config=one_thread) as session:
        x = v1.placeholder(tf.float32, [2])
        results = [hvd.allreduce(x + i, op=hvd.Sum) for i in range(30)]
        results.append(tf.py_function(in_python, [x], tf.float32))
        for _ in range(5):
            got = session.run(results, {x: [rank, 1.0]})
            for i, result in enumerate(got):
                i %= 30
                np.testing.assert_array_equal(result, [sum(range(size)) + size * i, size * (1 + i)])


def test_what_follows_a_call_in_a_session_without_threads(size):
    """It is not hvd's thread that runs it: the eager call needs that one."""

    def in_python(x):
        return hvd.allreduce(x, op=hvd.Sum, name="behind")

    no_threads = v1.ConfigProto(inter_op_parallelism_threads=-1)
    with tf.Graph().as_default(), v1.Session(config=no_threads) as session:
        x = v1.placeholder(tf.float32, [2])
        behind = tf.py_function(in_python, [hvd.allreduce(x, op=hvd.Sum)], tf.float32)
        for _ in range(3):
            got = session.run(behind, {x: [1.0, 2.0]})
            np.testing.assert_array_equal(got, [size * size, 2.0 * size * size])


def test_all_are_under_way_together(rank, size):
    # The first waits for what the last gives: it can only end if the others do not wait for it.
    @tf.function
    def step(x):
        others = [hvd.allreduce(x + i, op=hvd.Sum, name=f"other{i}") for i in range(49)]
        held_back = tf.add_n(others) if rank == 0 else x
        # Not x itself: TensorFlow would merge it with other0, on the ranks but 0.
        return others, hvd.allreduce(held_back * 0 + x * 7, op=hvd.Sum, name="first")

    others, first = step(tf.constant([1.0]))
    np.testing.assert_array_equal(first, [7 * size])
    np.testing.assert_array_equal(others[48], [49 * size])


def test_opposite_orders(rank, size):
    """The second halves wait for what is in both first halves, and comes last there.

    So the step can only end if these two do not wait for what was asked for before them.
    """
    half = 50

    def after(x, others):
        with tf.control_dependencies(others):
            return tf.ensure_shape(tf.numpy_function(np.copy, [x], x.dtype), [])

    @tf.function(autograph=False)
    def step(x):
        numbers = list(range(2 * half))
        results = {}
        for i in numbers if rank % 2 == 0 else reversed(numbers):
            is_second_half = len(results) == half + 1
            x = after(x, [results[half - 1], results[half]] if is_second_half else [])
            results[i] = hvd.allreduce(x + i, op=hvd.Sum, name=f"tensor{i}")
        return [results[i] for i in numbers]

    results = step(tf.constant(1.0))
    np.testing.assert_array_equal(results, [size * (1 + i) for i in range(2 * half)])


def test_a_loop_with_parallel_iterations(rank, size):
    count = 20

    @tf.function
    def step(x):
        def body(i, results):
            # Iterations end in another order on each rank.
            late = tf.numpy_function(
                lambda i: time.sleep(0.01 * ((i * 7 + rank * 3) % 5)) or np.float32(i),
                [i],
                tf.float32,
                stateful=False,
            )
            late.set_shape([])
            return i + 1, results.write(i, hvd.allreduce(x * late, op=hvd.Sum, name="of_loop"))

        results = tf.TensorArray(tf.float32, count)
        return tf.while_loop(lambda i, _: i < count, body, [0, results], parallel_iterations=8)[
            1
        ].stack()

    expected = np.arange(count) * sum(range(1, size + 1))
    for _ in range(3):
        np.testing.assert_array_equal(step(tf.constant(rank + 1.0)), expected)


def test_a_loop_in_a_loop(rank, size):
    outer_count, inner_count = 4, 5

    @tf.function
    def step(x):
        def outer(i, results):
            def inner(j, results):
                value = x * tf.cast(i * 10 + j, tf.float32)
                value = late(value, 0.01 * ((rank * 3) % 2))
                reduced = hvd.allreduce(value, op=hvd.Sum, name="of_loops")
                return j + 1, results.write(i * inner_count + j, reduced)

            return i + 1, tf.while_loop(lambda j, _: j < inner_count, inner, [0, results])[1]

        results = tf.TensorArray(tf.float32, outer_count * inner_count)
        return tf.while_loop(lambda i, _: i < outer_count, outer, [0, results])[1].stack()

    expected = [
        (i * 10 + j) * sum(range(1, size + 1))
        for i in range(outer_count)
        for j in range(inner_count)
    ]
    np.testing.assert_array_equal(step(tf.constant(rank + 1.0)), expected)


def test_loops_of_a_session(rank, size):
    for control_flow_v2 in (False, True):
        enable = v1.enable_control_flow_v2 if control_flow_v2 else v1.disable_control_flow_v2
        enable()
        try:
            with tf.Graph().as_default(), v1.Session() as session:
                x = v1.placeholder(tf.float32, [])
                total = tf.while_loop(
                    lambda i, _: i < 5,
                    lambda i, t: (i + 1, t + hvd.allreduce(x * tf.cast(i, tf.float32), op=hvd.Sum)),
                    [0, 0.0],
                )[1]
                got = session.run(total, {x: rank + 1.0})
                assert got == 10 * sum(range(1, size + 1))
        finally:
            v1.enable_control_flow_v2()


def test_branches(rank, size):
    @tf.function
    def step(x, positive):
        return tf.cond(
            positive,
            lambda: hvd.allreduce(x, op=hvd.Sum),
            lambda: hvd.allreduce(-x, op=hvd.Sum),
        )

    for positive in (True, False, True):
        got = step(tf.constant(1.0), tf.constant(positive))
        assert got.numpy() == (size if positive else -size)


def test_a_constant_when_ranks_retrace_differently(rank, size):
    # TensorFlow folds stateless ops of constants whenever it traces or optimises. Ranks do so at
    # different times. A collective that ran then would be missing on some of them.
    traces = []

    @tf.function
    def step(_):
        traces.append(1)
        x = tf.constant([1.0, 2.0])
        # The shape is evaluated while the graph is built, too.
        shape = hvd.allreduce(tf.constant([2, 1]), op=hvd.Min)
        return tf.reshape(hvd.allreduce(x, op=hvd.Sum), shape)

    for i in range(6):
        argument = i if rank == 0 else tf.constant(i)  # Python numbers are traced one by one
        np.testing.assert_array_equal(step(argument), [[size], [2 * size]])
    assert len(traces) == (6 if rank == 0 else 1)


def test_a_constant_in_a_session(rank, size):
    for _ in range(1 + rank):  # another number of graphs that are only optimised
        with tf.Graph().as_default(), v1.Session() as session:
            unused = hvd.allreduce(tf.constant([3.0]), op=hvd.Sum)
            y = tf.cond(tf.constant(False), lambda: unused * 1, lambda: tf.constant([0.0]))
            y = v1.placeholder_with_default([7.0], [1]) + 0 * tf.size(y, out_type=tf.float32)
            assert session.run(y) == [7.0]
    with tf.Graph().as_default(), v1.Session() as session:
        y = tf.reshape(
            hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum),
            hvd.broadcast(tf.constant([2, 1]), 0),
        )
        for _ in range(3):
            np.testing.assert_array_equal(session.run(y), [[size], [2 * size]])


def test_equal_calls_that_tensorflow_merges(rank, size):
    @tf.function
    def step(x):
        a = hvd.allreduce(x, op=hvd.Sum)
        b = hvd.allreduce(x, op=hvd.Sum)
        return a + b

    for _ in range(3):
        np.testing.assert_array_equal(step(tf.constant([1.0])), [2 * size])


def test_one_function_called_twice(rank, size):
    inner = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="inner"))

    @tf.function
    def step(x):
        return inner(x), inner(x + 1)

    np.testing.assert_array_equal(step(tf.constant([1.0])), [[size], [2 * size]])


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("allreduce", lambda x: hvd.allreduce(x)),
        ("allreduce", lambda x: hvd.allreduce(tf.IndexedSlices(x, [0, 1], [3])).values),
        ("grouped_allreduce", lambda x: hvd.grouped_allreduce([x, x])),
        ("allgather", lambda x: tf.function(hvd.allgather)(x)),  # is compiled with what calls it
        ("broadcast", lambda x: hvd.broadcast(x, 0)),
        ("alltoall", lambda x: hvd.alltoall(x)),
        ("reducescatter", lambda x: hvd.reducescatter(x)),
        ("barrier", lambda x: hvd.barrier()),
        ("join", lambda x: hvd.join()),
    ],
)
def test_xla_is_refused_while_a_function_is_traced(verb, call):
    compiled = tf.function(call, jit_compile=True, autograph=False)
    with pytest.raises(ValueError, match=f"XLA cannot compile {verb}, .* jit_compile=True"):
        compiled(tf.constant([1.0, 2.0]))


def test_a_map_that_runs_one_call_at_a_time(rank, size):
    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    dataset = tf.data.Dataset.range(30).map(lambda x: hvd.allreduce(x * (rank + 1), op=hvd.Sum))
    factor = size * (size + 1) // 2
    for count in (0, 3):
        results = dataset.with_options(options).prefetch(count)
        assert [int(x) for x in results] == [x * factor for x in range(30)]


def test_names_of_nodes(size):
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [1], name="x")
        assert hvd.allreduce(x).op.name == "HorovodAllreduce_x_0"
        with v1.name_scope("scope"):
            named = hvd.allreduce(x, name="mine")
            assert (named.op.name, named.op.get_attr("tensor_name")) == ("scope/mine", b"")
            bare = hvd.allreduce(x, name="mine", ignore_name_scope=True)
            assert bare.op.get_attr("tensor_name") == b"mine"
            odd = hvd.allgather(x, name="w:0 and 2 more")
            assert odd.op.get_attr("tensor_name") == b"scope/w:0 and 2 more"


def test_scopes_can_be_ignored(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [1])
        with v1.name_scope(f"of_rank_{rank}"):
            y = hvd.allreduce(x, op=hvd.Sum, name="same", ignore_name_scope=True)
        assert session.run(y, {x: [1.0]}) == [size]


def test_a_graph_that_is_older_than_init(rank, size):
    step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum) + tf.cast(hvd.rank_op(), tf.float32))
    assert step(tf.constant(1.0)).numpy() == size + rank
    hvd.allreduce(1.0, name="before_shutdown")
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="hvd.init"):
        step(tf.constant(1.0))
    hvd.init()
    assert step(tf.constant(1.0)).numpy() == size + rank


@pytest.mark.parametrize("grouped", [False, True])
def test_inputs_that_are_used_elsewhere_keep_their_values(rank, size, grouped):
    """What only the collective holds is reduced in place. Everything else must not be."""

    def reduce(tensors):
        if grouped:
            return hvd.grouped_allreduce(tensors, op=hvd.Sum)
        return [hvd.allreduce(tensor, op=hvd.Sum) for tensor in tensors]

    variable = tf.Variable(np.full(5000, rank + 1.0))
    argument = tf.constant(np.full(5000, rank + 2.0))

    @tf.function
    def step(argument):
        shared, own = argument * 3.0, argument * 5.0
        with tf.control_dependencies([shared, own]):
            reduced = reduce([variable.read_value(), argument, shared, own])
        with tf.control_dependencies(reduced):
            after = tf.identity(shared)
        return reduced, [variable.read_value(), argument, after]

    ranks = np.arange(size)
    for _ in range(3):
        reduced, kept = step(argument)
        sums = [sum(ranks + 1), sum(ranks + 2), 3 * sum(ranks + 2), 5 * sum(ranks + 2)]
        for value, total in zip(reduced, sums):
            np.testing.assert_array_equal(value, np.full(5000, float(total)))
        for value, expected in zip(kept, [rank + 1, rank + 2, 3 * (rank + 2)]):
            np.testing.assert_array_equal(value, np.full(5000, float(expected)))
