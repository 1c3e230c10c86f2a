# SPDX-License-Identifier: Apache-2.0
"""A kernel runs again and again: it keeps its last request, and must notice what has changed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

OWN_INIT = True
RANKS = (3,)


@pytest.fixture(scope="module", autouse=True)
def hvd():
    hvd_tf.init(process_sets="dynamic")
    yield hvd_tf
    hvd_tf.shutdown()


def any_shape(body):
    """One kernel for all shapes of a float32 tensor."""
    return tf.function(
        body, input_signature=[tf.TensorSpec(None, tf.float32)], autograph=False
    ).get_concrete_function()


def test_shapes_change(hvd, rank, size):
    run = any_shape(lambda x: hvd.allreduce(x, op=hvd.Sum, name="again"))
    total = size * (size + 1) / 2
    for shape in ([3], [3], [2, 3], [3], [], [0, 2], [3, 2], [6], [6]):
        np.testing.assert_array_equal(run(tf.fill(shape, rank + 1.0)), np.full(shape, total))


def test_rows_change(hvd, rank, size):
    run = any_shape(lambda x: hvd.allgather(x, name="again"))
    for step, rows in enumerate((1, 1, 4, 0, 1, 2, 2)):
        mine = rows + (rank if step % 2 else 0)
        want = np.concatenate(
            [np.full([rows + (peer if step % 2 else 0), 2], peer) for peer in range(size)]
        )
        np.testing.assert_array_equal(run(tf.fill([mine, 2], float(rank))), want)


def test_splits_change(hvd, rank, size):
    send = tf.function(
        lambda x, splits: hvd.alltoall(x, splits, name="again"),
        input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None], tf.int32)],
        autograph=False,
    ).get_concrete_function()
    rows = 2 * size
    for step in range(4):
        # This rank sends 2 * size rows: all to one rank, which is another one in each step.
        to = (rank + step) % size
        splits = np.zeros(size, np.int32)
        splits[to] = rows
        received, counts = send(tf.fill([rows], float(rank)), tf.constant(splits))
        source = (rank - step) % size
        np.testing.assert_array_equal(received, np.full(rows, source))
        assert counts.numpy().tolist() == [rows if peer == source else 0 for peer in range(size)]


def test_after_an_error(hvd, rank, size):
    run = any_shape(lambda x: hvd.allreduce(x, op=hvd.Sum, name="again.error"))
    right = np.full([4], float(size))
    np.testing.assert_array_equal(run(tf.ones([4])), right)
    for _ in range(2):
        with pytest.raises(tf.errors.FailedPreconditionError, match="again.error"):
            run(tf.ones([4 + rank]))
        np.testing.assert_array_equal(run(tf.ones([4])), right)


def test_an_own_error(hvd, rank, size):
    """One rank's call is invalid, and its kernel goes on with the shapes of before."""
    send = tf.function(
        lambda x, splits: hvd.alltoall(x, splits, name="again.own"),
        input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None], tf.int32)],
        autograph=False,
    ).get_concrete_function()
    good = tf.ones([size], tf.int32)
    for _ in range(2):
        np.testing.assert_array_equal(send(tf.fill([size], float(rank)), good)[0], range(size))
        splits = -good if rank == 0 else good
        with pytest.raises(tf.errors.OpError, match="again.own"):
            send(tf.fill([size], float(rank)), splits)


def test_many_in_flight(hvd, rank, size):
    """One kernel in a loop, whose iterations run side by side."""

    @tf.function(autograph=False)
    def loop():
        return tf.map_fn(
            lambda i: hvd.allreduce(i * (rank + 1.0), op=hvd.Sum, name="again.loop"),
            tf.range(40.0),
            parallel_iterations=10,
        )

    for _ in range(3):
        np.testing.assert_array_equal(loop(), np.arange(40.0) * (size * (size + 1) / 2))


@pytest.mark.parametrize("count", [1, 3])
def test_another_set_with_the_same_id(hvd, rank, count):
    """The numbers of a set mean nothing to the next one that has its id. Several share a kernel."""
    process_set = hvd.add_process_set([0, 1])
    run = tf.function(
        lambda x: [
            hvd.allreduce(x * i, op=hvd.Sum, name=f"again.set{i}", process_set=process_set)
            for i in range(1, count + 1)
        ],
        autograph=False,
    ).get_concrete_function(tf.TensorSpec([], tf.float32))
    for ranks in ([1, 2], [2], [0, 2], [0, 1]):
        hvd.remove_process_set(process_set)
        process_set = hvd.add_process_set(ranks)
        assert process_set.process_set_id == 1
        for _ in range(3):
            if process_set.included():
                want = [sum(r + 1 for r in ranks) * i for i in range(1, count + 1)]
                np.testing.assert_array_equal(run(tf.constant(rank + 1.0)), want)
    hvd.remove_process_set(process_set)


def test_another_runtime(hvd, rank, size):
    """After a new init the same numbers mean other tensors."""
    first = any_shape(lambda x: hvd.allreduce(x, op=hvd.Sum, name="again.first"))
    second = any_shape(lambda x: hvd.allreduce(x, op=hvd.Max, name="again.second"))
    bundle = tf.function(
        lambda x: hvd.allreduce(x, op=hvd.Sum, name="a") + hvd.allreduce(-x, op=hvd.Sum, name="b")
    ).get_concrete_function(tf.TensorSpec([], tf.float32))
    for order in ((first, second), (second, first), (first, second)):
        for _ in range(3):
            for run in order:
                want = size * (size + 1) / 2 if run is first else size
                assert run(tf.constant(rank + 1.0)).numpy() == want
            assert bundle(tf.constant(rank + 1.0)).numpy() == 0.0
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
