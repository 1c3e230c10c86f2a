# SPDX-License-Identifier: Apache-2.0
"""alltoall, reducescatter and barrier in every mode of TensorFlow, against NumPy."""

from __future__ import annotations

import os
import time

import fake_gpu
import numpy as np
import pytest
import tensorflow as tf
from modes import (
    ALL_DTYPES,
    FLOATS,
    MODES,
    REDUCIBLE,
    assert_close,
    reduced,
    run,
    v1,
    values,
)
from test_errors import disagree, fails, fails_for_one, odd
from test_op_gradients import gradient, total

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2,)
GPU = (2,)
HOSTS = "2x2"


def splits_of(rank, size):
    """Rows that a rank sends to each: none to some."""
    return [(rank * 2 + to * 3 + 1) % 4 for to in range(size)]


def sent_rows(dtype, rank, size, width=2):
    return values(dtype, (sum(splits_of(rank, size)), width), rank)


def rows_for(to, size, of_rank):
    """What rank `to` gets of each rank's rows: `of_rank(rank)` are one rank's."""
    received = []
    for rank in range(size):
        begin = sum(splits_of(rank, size)[:to])
        received.append(of_rank(rank)[begin : begin + splits_of(rank, size)[to]])
    return np.concatenate(received)


def own_rows(rows, rank, size):
    """The rows of a reducescatter: as even as can be, the first ranks have one more."""
    return np.array_split(rows, size)[rank]


# ---- alltoall ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_alltoall(mode, dtype, rank, size):
    splits = np.int32(splits_of(rank, size))
    output, received = run(mode, hvd.alltoall, sent_rows(dtype, rank, size), splits)
    np.testing.assert_array_equal(output, rows_for(rank, size, lambda r: sent_rows(dtype, r, size)))
    np.testing.assert_array_equal(received, [splits_of(r, size)[rank] for r in range(size)])
    assert received.dtype == np.int32


@pytest.mark.parametrize("mode", MODES)
def test_alltoall_without_splits(mode, rank, size):
    parts = [values("float32", (2 * size, 3), r) for r in range(size)]
    output = run(mode, hvd.alltoall, parts[rank])
    wanted = np.concatenate([part[2 * rank : 2 * rank + 2] for part in parts])
    np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_alltoall_of_nothing(shape, rank, size):
    splits = [shape[0]] + [0] * (size - 1)
    output, received = hvd.alltoall(np.zeros(shape, np.float32), splits)
    rows = shape[0] * size if rank == 0 else 0
    assert output.shape == (rows, *shape[1:])
    assert received.numpy().tolist() == [shape[0] if rank == 0 else 0] * size


def test_alltoall_leaves_rows_behind_the_splits(rank, size):
    x = np.arange(10 * size, dtype=np.float64) + 100 * rank
    output, received = hvd.alltoall(x, [2] * size)
    wanted = [2 * rank + i + 100 * r for r in range(size) for i in range(2)]
    np.testing.assert_array_equal(output, wanted)
    assert received.numpy().tolist() == [2] * size


def test_alltoall_takes_integers_of_any_kind(rank, size):
    for splits in ([1] * size, np.int64([1] * size), tf.constant([1] * size, tf.int64), []):
        assert len(hvd.alltoall(np.zeros(size, np.int32), splits)[0]) == size
    with pytest.raises(ValueError, match="float32; pass integers"):
        hvd.alltoall(np.zeros(size, np.int32), [1.0] * size)


def test_what_came_from_each_rank_can_be_split_in_a_graph(rank, size):
    @tf.function
    def parts(x, splits):
        return tf.split(*hvd.alltoall(x, splits))

    sent = sent_rows("float32", rank, size)
    for r, part in enumerate(parts(sent, np.int32(splits_of(rank, size)))):
        assert len(part) == splits_of(r, size)[rank]
    with tf.Graph().as_default():
        for splits in ([], tf.compat.v1.placeholder(tf.int32)):  # a graph does not fix the size
            assert hvd.alltoall(sent, splits)[1].shape.as_list() == [None]


def test_dozens_of_alltoalls_in_flight(rank, size):
    @tf.function
    def step(x, splits):
        return [hvd.alltoall(x * i, splits, name=f"many.{i}")[0] for i in range(40)]

    x = sent_rows("float32", rank, size)
    for _ in range(3):
        outputs = step(x, splits_of(rank, size))
    for i, output in enumerate(outputs):
        wanted = rows_for(rank, size, lambda r, i=i: sent_rows("float32", r, size) * np.float32(i))
        np.testing.assert_array_equal(output, wanted)


def test_splits_change_from_step_to_step(rank, size):
    @tf.function(reduce_retracing=True)
    def step(x, splits):
        return hvd.alltoall(x, splits, name="changing")

    for n in (1, 5, 0, 700, 2):
        output, received = step(np.full((n * size, 2), rank, np.int64), [n] * size)
        assert received.numpy().tolist() == [n] * size
        wanted = np.repeat(np.arange(size), n)[:, None] * np.ones((1, 2), np.int64)
        np.testing.assert_array_equal(output, wanted)


@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_alltoall(mode, rank, size):
    splits = splits_of(rank, size)
    received = sum(splits_of(r, size)[rank] for r in range(size))
    got = gradient(
        mode,
        lambda x: hvd.alltoall(x, splits)[0],
        np.concatenate([sent_rows("float64", rank, size), np.ones((3, 2))]),  # 3 go nowhere
        values("float64", (received, 2), rank, 1),
    )
    # Each row's gradient is where the row went.
    pieces = []
    for to in range(size):
        there = values("float64", (sum(splits_of(r, size)[to] for r in range(size)), 2), to, 1)
        begin = sum(splits_of(r, size)[to] for r in range(rank))
        pieces.append(there[begin : begin + splits[to]])
    np.testing.assert_array_equal(got, np.concatenate([*pieces, np.zeros((3, 2))]))


# ---- reducescatter -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_reducescatter(mode, dtype, rank, size):
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        for rows in (0, 1, size, 2 * size + 1):
            parts = [values(dtype, (rows, 3), r, op) for r in range(size)]
            result = run(mode, lambda x, op=op: hvd.reducescatter(x, op=op), parts[rank])
            wanted = own_rows(reduced(op, parts), rank, size)
            assert_close(result, wanted, dtype, 2 * size)


def test_average_is_the_default(rank, size):
    result = hvd.reducescatter(np.full((size, 2), rank, np.float32))
    np.testing.assert_allclose(result, np.full((1, 2), (size - 1) / 2))


def test_with_allgather_it_has_the_bits_of_allreduce(rank, size):
    for name, wire in (("none", 1e-6), ("fp16", 1e-2), ("bf16", 1e-1)):
        compression = getattr(hvd.Compression, name)
        x = values("float32", (3 * size + 2, 5), rank)
        scattered = hvd.reducescatter(
            x, op=hvd.Sum, compression=compression, prescale_factor=0.3, postscale_factor=1.7
        )
        whole = hvd.allreduce(
            x, op=hvd.Sum, compression=compression, prescale_factor=0.3, postscale_factor=1.7
        )
        # There NCCL multiplies by both factors at once, and hosts add up what is compressed.
        tolerance = wire if os.environ.get(fake_gpu.NCCL_VARIABLE) == "1" else 0.0
        gathered = hvd.allgather(scattered)
        np.testing.assert_allclose(gathered, whole, rtol=tolerance, atol=tolerance)
        exact = total(0, (3 * size + 2, 5), size) * 0.3 * 1.7
        np.testing.assert_allclose(whole, exact, atol=10 * size * wire)


@pytest.mark.parametrize("mode", MODES)
def test_grouped_reducescatter(mode, rank, size):
    dtypes = ("float32", "float64", "float32")
    parts = [
        [values(dtype, (size + i, 2), r, i) for i, dtype in enumerate(dtypes)] for r in range(size)
    ]
    results = run(mode, lambda *xs: hvd.grouped_reducescatter(list(xs)), *parts[rank])
    for i, (result, dtype) in enumerate(zip(results, dtypes)):
        wanted = reduced(hvd.Average, [part[i] for part in parts])
        assert_close(result, own_rows(wanted, rank, size), dtype, 2 * size)
    assert hvd.grouped_reducescatter([]) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op, factor", [("Sum", None), ("Average", 1.0)])
def test_gradient_of_reducescatter(mode, op, factor, rank, size):
    rows = 2 * size + 1
    own = len(own_rows(np.zeros(rows), rank, size))
    got = gradient(
        mode,
        lambda x: hvd.reducescatter(x, op=getattr(hvd, op), prescale_factor=0.5),
        values("float64", (rows, 2), rank),
        values("float64", (own, 2), rank, 1),
    )
    counts = [len(own_rows(np.zeros(rows), r, size)) for r in range(size)]
    upstream = [values("float64", (count, 2), r, 1) for r, count in enumerate(counts)]
    wanted = np.concatenate(upstream) * 0.5 * (factor or size)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_scattered_and_gathered_it_has_the_gradient_of_allreduce(op, rank, size):
    op = getattr(hvd, op)
    x, upstream = values("float64", (4 * size, 2), rank), values("float64", (4 * size, 2), rank, 1)
    both = gradient("function", lambda x: hvd.allgather(hvd.reducescatter(x, op=op)), x, upstream)
    one = gradient("function", lambda x: hvd.allreduce(x, op=op), x, upstream)
    np.testing.assert_allclose(both, one, rtol=1e-12)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_of_grouped_reducescatter(dtype, rank, size):
    x = values(dtype, (size, 2), rank)
    got = gradient("function", lambda x: hvd.grouped_reducescatter([x, x])[0], x, x[:1] * 0 + 1)
    np.testing.assert_array_equal(got.astype(np.float64), np.ones((size, 2)))


# ---- barrier -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_no_rank_passes_before_all_have_come(mode, rank, size):
    # All ranks of a job share the clock of their machine.
    late = size - 1
    for turn in range(3):
        if rank == late:
            time.sleep(0.05)
        came = time.clock_gettime(time.CLOCK_MONOTONIC)
        if mode == "session":
            with tf.Graph().as_default(), v1.Session() as session:
                session.run(hvd.barrier(name=f"turn{turn}"))
        elif mode == "function":

            @tf.function
            def wait(turn=turn):
                hvd.barrier(name=f"turn{turn}")

            wait()
        else:
            hvd.barrier()
        passed = time.clock_gettime(time.CLOCK_MONOTONIC)
        everyones = hvd.allgather(np.float64([[came, passed]])).numpy()
        assert everyones[:, 0].max() <= everyones[:, 1].min()


# ---- mistakes ----------------------------------------------------------------------------------


def test_mistakes(rank, size):
    if size == 1:
        with pytest.raises(tf.errors.InvalidArgumentError, match="only 1 rows"):
            hvd.alltoall(np.zeros(1), [2])
        return
    x = np.zeros((odd(rank, size, 2, 3), odd(rank, size, 3, 4)), np.float32)
    disagree(lambda: hvd.alltoall(x, [0] * size, name="rows"), "rows", "[?,3]", "[?,4]")
    disagree(lambda: hvd.reducescatter(x, name="whole"), "whole", "[2,3]", "[3,4]")
    disagree(
        lambda: (hvd.barrier if rank == 0 else lambda name: hvd.alltoall([0] * size, name=name))(
            name="verbs"
        ),
        "barrier",
        "alltoall",
    )
    for call, text in (
        (lambda: hvd.alltoall(1.0, name="scalar"), "alltoall of a scalar"),
        (lambda: hvd.reducescatter(1.0, name="scalar"), "reducescatter of a scalar"),
    ):
        fails(tf.errors.FailedPreconditionError, call, "scalar", text)
    invalid = tf.errors.InvalidArgumentError
    for splits, text in (
        (odd(rank, size, [1] * size, [1]), "1 entries; pass one for each"),
        (odd(rank, size, [1] * size, [-1] + [1] * (size - 1)), "has a negative entry"),
        (odd(rank, size, [1] * size, [9] * size), f"only {size} rows"),
        (
            np.array(odd(rank, size, [1] * size, [1 << 32] + [0] * (size - 1))),
            "an entry above 2147",
        ),
    ):
        fails_for_one(
            rank,
            size,
            invalid,
            lambda splits=splits: hvd.alltoall(np.zeros(size), splits, name="splits"),
            "splits",
            text,
        )
    fails_for_one(
        rank,
        size,
        invalid,
        lambda: hvd.alltoall(np.zeros(odd(rank, size, size, size + 1)), name="uneven"),
        "uneven",
        f"has {size + 1} rows; pass splits=",
    )
    hvd.barrier(name="after")  # a rank whose own call is invalid waits for nobody
