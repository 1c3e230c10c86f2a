# SPDX-License-Identifier: Apache-2.0
"""Eager calls: by the caller's name, in any order, from any thread; unnamed ones leave nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import tensorflow as tf

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


def test_unnamed_calls_of_two_threads(rank, size):
    gate = threading.Barrier(2)

    def loop(value):
        gate.wait()
        return sum(hvd.allreduce(value, op=hvd.Sum).numpy() for _ in range(50))

    totals = []
    other = threading.Thread(target=lambda: totals.append(loop(1.0)))
    other.start()
    assert loop(10.0) == 500 * size
    other.join(30)
    assert totals == [50 * size]


def test_one_name_with_changing_shapes(size):
    for n in (1, 5, 2, 5, 1, 0, 7):
        np.testing.assert_array_equal(hvd.allreduce(np.ones(n, np.float32), op=hvd.Sum), [size] * n)
        np.testing.assert_array_equal(hvd.allgather(np.ones(n, np.int32)), [1] * n * size)


def test_unnamed_calls_leave_memory_flat():
    x = tf.constant([1.0])

    def calls(count):
        for _ in range(count):
            hvd.allreduce(x)

    calls(10_000)
    before = resident_bytes()
    calls(60_000)
    # An entry that was left behind would be some 100 bytes or more; TensorFlow 2.15 itself keeps
    # 16 of each eager operation, tf.identity too.
    assert (resident_bytes() - before) / 60_000 < 50


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
