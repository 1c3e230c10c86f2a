# SPDX-License-Identifier: Apache-2.0
"""join: ranks with fewer batches, in every mode of TensorFlow, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modes import MODES, run, v1, values
from test_op_gradients import gradient

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2,)
GPU = (2,)
HOSTS = "2x2"


def steps_of(rank):
    """How many batches a rank has. One has none."""
    return (4, 1, 0, 6)[rank]


def active(step, size):
    return [r for r in range(size) if step < steps_of(r)]


def join(mode):
    if mode != "session":
        return int(run(mode, lambda: hvd.join()))
    with tf.Graph().as_default(), v1.Session() as session:
        return int(session.run(hvd.join()))


@pytest.mark.parametrize("mode", MODES)
def test_what_the_others_get(mode, rank, size):
    for step in range(steps_of(rank)):
        parts = [values("float32", (5, 2), r, step) for r in active(step, size)]

        def verbs(x, step=step, mode=mode):
            name = f"{mode}{step}"
            return [
                hvd.allreduce(x, op=hvd.Sum, name=f"{name}.sum"),
                hvd.allreduce(x, op=hvd.Min, name=f"{name}.min"),
                hvd.allreduce(x, op=hvd.Max, name=f"{name}.max"),
                hvd.allreduce(x, op=hvd.Product, name=f"{name}.product"),
                hvd.allreduce(x, name=f"{name}.average"),
                hvd.allgather(x[: hvd.rank() + 1], name=f"{name}.rows"),
            ]

        results = run(mode, verbs, values("float32", (5, 2), rank, step))
        wide = [part.astype(np.float64) for part in parts]
        wanted = [
            np.sum(wide, 0),
            np.min(wide, 0),
            np.max(wide, 0),
            np.prod(wide, 0),
            np.sum(wide, 0) / size,
            np.concatenate([p[: r + 1] for r, p in zip(active(step, size), parts)]),
        ]
        for result, value in zip(results, wanted):
            np.testing.assert_allclose(result, value, rtol=1e-5, atol=1e-5)
    last = join(mode)
    assert 0 <= last < size
    # All are back, and agree on who was last.
    assert hvd.allgather([last]).numpy().tolist() == [last] * size


def test_slices_and_objects(rank, size):
    for step in range(steps_of(rank)):
        slices = tf.IndexedSlices(
            tf.fill([rank + 1, 2], float(rank + 1)), tf.range(rank + 1), tf.constant([9, 2])
        )
        result = hvd.allreduce(slices, op=hvd.Sum, name=f"slices{step}")
        ranks = active(step, size)
        # Rank r has the rows 0 to r.
        wanted = [[sum(r + 1.0 for r in ranks if r >= row)] * 2 for row in range(max(ranks) + 1)]
        np.testing.assert_array_equal(result.values, wanted)
        assert result.indices.numpy().tolist() == list(range(max(ranks) + 1))
        assert hvd.allgather_object({"rank": rank}) == [{"rank": r} for r in ranks]
    hvd.join()


def test_gradient_of_allgather(rank, size):
    # A rank's rows are found by its number, not by its place among the gathered.
    for step in range(steps_of(rank)):
        ranks = active(step, size)
        x = values("float64", (rank + 1, 2), rank)
        total = sum(r + 1 for r in ranks)
        upstream = values("float64", (total, 2), 7)
        got = gradient("eager", lambda x: hvd.allgather(x, name="grown"), x, upstream)
        begin = sum(r + 1 for r in ranks if r < rank)
        share = upstream[begin : begin + rank + 1] * len(ranks) / size
        np.testing.assert_allclose(got, share, rtol=1e-12)
    hvd.join()


def test_what_would_be_lost(rank, size):
    if size == 1:
        return
    absent = size - 1
    if rank != absent:
        # The others know that it has joined once a sum is without it.
        for turn in range(100000):
            if hvd.allreduce(1, op=hvd.Sum, name=f"is_there{turn}").numpy() < size:
                break
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"needs rank {absent}, which"):
            hvd.broadcast([1.0], absent, name="from_absent")
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"needs rank {absent}, which"):
            hvd.reducescatter(np.ones(size), name="scattered")
        with pytest.raises(tf.errors.InvalidArgumentError, match="lost; send it none|call invalid"):
            hvd.alltoall(np.ones(size), [1] * size, name="to_absent")
        sent = hvd.alltoall(np.full(size - 1, rank), [1] * (size - 1) + [0], name="past_absent")[0]
        assert sent.numpy().tolist() == list(range(size - 1))
        root = hvd.broadcast([float(rank)], 0, name="from_active")
        assert root.numpy().tolist() == [0.0]
    hvd.join()
