# SPDX-License-Identifier: Apache-2.0
"""Eager calls match by their name, in any order and thread. Unnamed ones come from two threads."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from memory import grown_bytes, malloc_bytes

import hvd_tf as hvd

ALONE = True
RANKS = (2,)
TIMEOUT_S = 300


def in_threads(*calls):
    results = [None] * len(calls)

    def run(i):
        results[i] = calls[i]()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_names_count_whatever_the_order(rank, size):
    # Two at a time, because an eager call waits for its end.
    def reduce(name, value):
        return lambda: hvd.allreduce(float(value), op=hvd.Sum, name=name).numpy()

    for _ in range(20):
        calls = {"one": reduce("one", 1), "ten": reduce("ten", 10)}
        order = ["one", "ten"] if rank == 0 else ["ten", "one"]
        results = dict(zip(order, in_threads(*(calls[name] for name in order))))
        assert results == {"one": size, "ten": 10 * size}


def test_unnamed_calls_of_other_threads_are_refused(rank, size):
    """By their order they would be matched wrongly: each rank begins with another thread."""
    x = tf.constant([1.0])
    slices = tf.IndexedSlices(x, tf.constant([0]), tf.constant([3]))
    calls = {
        "allreduce": [lambda: hvd.allreduce(x), lambda: hvd.allreduce(slices)],
        "grouped_allreduce": [lambda: hvd.grouped_allreduce([x, slices])],
        "allgather": [lambda: hvd.allgather(x)],
        "grouped_allgather": [lambda: hvd.grouped_allgather([x])],
        "broadcast": [lambda: hvd.broadcast(x, 0)],
        "broadcast_": [lambda: hvd.broadcast_([tf.Variable(x)], 0)],
        "broadcast_object": [lambda: hvd.broadcast_object(1, 0)],
        "allgather_object": [lambda: hvd.allgather_object(1)],
    }

    def refused(verb, call):
        with pytest.raises(ValueError) as caught:
            call()
        text = str(caught.value)
        return text.startswith(f"{verb} in the thread '{threading.current_thread().name}' needs ")

    cases = [(verb, call) for verb in calls for call in calls[verb]]
    cases = cases if rank == 0 else cases[::-1]
    found = in_threads(*(lambda case=case: refused(*case) for case in cases))
    assert found == [True] * len(cases)
    # Nothing was sent. With a name they go on, and so do graphs, whose nodes have names.
    named = in_threads(lambda: hvd.allgather_object(rank, name="from a thread"))
    assert named == [list(range(size))]
    step = tf.function(lambda: hvd.allreduce(x, op=hvd.Sum), autograph=False)
    assert in_threads(lambda: step().numpy().tolist()) == [[size]]
    assert hvd.allreduce(x, op=hvd.Sum).numpy() == size


def test_unnamed_calls_of_the_thread_that_called_init(size):
    """A program may live in a thread of its own, beside the main thread. Both are told apart."""
    gate = threading.Barrier(2)

    def loop(value):
        gate.wait()
        return sum(hvd.allreduce(value, op=hvd.Sum).numpy() for _ in range(50))

    def whole_program():
        hvd.init()
        totals.append(loop(1.0))

    totals = []
    hvd.shutdown()
    other = threading.Thread(target=whole_program)
    other.start()
    assert loop(10.0) == 500 * size
    other.join(30)
    assert totals == [50 * size]
    # A later thread may have got the number of the one that has ended.
    (error,) = in_threads(lambda: pytest.raises(ValueError, hvd.allreduce, 1.0))
    assert "needs name=" in str(error.value)


def test_one_name_with_changing_shapes(size):
    for n in (1, 5, 2, 5, 1, 0, 7):
        np.testing.assert_array_equal(hvd.allreduce(np.ones(n, np.float32), op=hvd.Sum), [size] * n)
        np.testing.assert_array_equal(hvd.allgather(np.ones(n, np.int32)), [1] * n * size)


def test_unnamed_calls_leave_memory_flat():
    x = tf.constant([1.0])

    def calls(count):
        for _ in range(count):
            hvd.allreduce(x)

    calls(2000)
    gc.collect()
    bytes_before, blocks_before = malloc_bytes(), sys.getallocatedblocks()
    calls(8000)
    gc.collect()
    # An entry that was left behind would be some 100 bytes or more.
    assert grown_bytes(bytes_before) / 8000 < 50
    # Python's blocks. TensorFlow 2.15 itself keeps one for each eager operation, also tf.identity.
    assert (sys.getallocatedblocks() - blocks_before) / 8000 < 1.5
