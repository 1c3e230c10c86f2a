# SPDX-License-Identifier: Apache-2.0
"""More elements than an int holds. Skipped where there is not the memory for it.

With 2 ranks they take minutes and run only where HVD_TEST_ALL is set.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

ALONE = True
RANKS = (1, 2)
TIMEOUT_S = 400

COUNT = 2**31 + 12_345
# Where an index of 32 bits would wrap, and the ends.
PLACES = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, COUNT - 1]


@pytest.fixture(autouse=True)
def memory(size):
    """Each rank holds an input and an output."""
    if size > 1 and "HVD_TEST_ALL" not in os.environ:
        pytest.skip("HVD_TEST_ALL is not set")
    lines = Path("/proc/meminfo").read_text().splitlines()
    (available,) = [int(line.split()[1]) << 10 for line in lines if "MemAvailable" in line]
    wanted = int(2.2 * COUNT * size) + (2 << 30)
    # The same answer on every rank, whatever another has taken meanwhile.
    enough = hvd.allreduce(int(available > wanted), op=hvd.Min, name="enough memory").numpy()
    if not enough:
        pytest.skip(f"needs {wanted >> 30} GiB of free memory")


def marked(rank, count=COUNT):
    """Zeros but at PLACES."""
    array = np.zeros(count, np.int8)
    for i, place in enumerate(PLACES):
        if place < count:
            array[place] = (i + 1) * (rank + 1)
    return tf.constant(array)


def test_allreduce(rank, size):
    # The scale keeps size 1 from handing its input on.
    total = hvd.allreduce(marked(rank), op=hvd.Sum, prescale_factor=2.0, name="large")
    assert total.shape == [COUNT]
    factor = 2 * sum(range(1, size + 1))
    np.testing.assert_array_equal(
        tf.gather(total, PLACES), [(i + 1) * factor for i in range(len(PLACES))]
    )
    assert np.count_nonzero(total.numpy()) == len(PLACES)


def test_allgather(rank, size):
    # Together more than 2^31, with another part of it on each rank.
    rows = [COUNT // size + (r * 7 if size > 1 else 0) for r in range(size)]
    part = np.zeros(rows[rank], np.int8)
    part[0], part[-1] = rank + 1, -(rank + 1)
    gathered = hvd.allgather(part, name="large")
    assert gathered.shape == [sum(rows)]
    ends = np.cumsum(rows)
    np.testing.assert_array_equal(tf.gather(gathered, ends - 1), -np.arange(1, size + 1))
    np.testing.assert_array_equal(tf.gather(gathered, ends - rows), np.arange(1, size + 1))


def test_broadcast(rank, size):
    root = size - 1
    value = hvd.broadcast(marked(rank), root, name="large")
    np.testing.assert_array_equal(
        tf.gather(value, PLACES), [(i + 1) * (root + 1) for i in range(len(PLACES))]
    )
