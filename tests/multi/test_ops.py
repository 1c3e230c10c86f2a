# SPDX-License-Identifier: Apache-2.0
"""Every verb, with every dtype, in every mode of TensorFlow, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modes import (
    ALL_DTYPES,
    FLOATS,
    MODES,
    REDUCIBLE,
    assert_close,
    np_dtype,
    reduced,
    run,
    sum_in_order,
    v1,
    values,
)

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2,)
HOSTS = "2x2"
GPU = (2,)

SHAPES = [(), (1,), (0, 3), (5, 2, 3)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", REDUCIBLE)
def test_allreduce(mode, dtype, rank, size):
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        parts = [[values(dtype, shape, r, op) for shape in SHAPES] for r in range(size)]
        results = run(mode, lambda *xs: [hvd.allreduce(x, op=op) for x in xs], *parts[rank])
        for i, result in enumerate(results):
            assert_close(result, reduced(op, [part[i] for part in parts]), dtype, 2 * size)


@pytest.mark.parametrize("mode", MODES)
def test_average_is_the_default(mode, rank, size):
    result = run(mode, hvd.allreduce, np.float32([rank]))
    assert_close(result, np.array([(size - 1) / 2]), "float32")


def test_integer_average_truncates_towards_zero(rank, size):
    for total in (7, -7):
        part = np.int32([total if rank == 0 else 0])
        assert hvd.allreduce(part, op=hvd.Average).numpy() == [int(total / size)]


@pytest.mark.parametrize("mode", MODES)
def test_scales_keep_all_bits_of_float64(mode, rank, size):
    prescale, postscale = 1 / 3, 0.1 + 1e-16
    parts = [values("float64", (100,), r) for r in range(size)]
    result = run(
        mode,
        lambda x: hvd.allreduce(
            x, op=hvd.Sum, prescale_factor=prescale, postscale_factor=postscale
        ),
        parts[rank],
    )
    expected = sum_in_order([part * prescale for part in parts])
    np.testing.assert_array_equal(result, expected * postscale)


def test_scales_of_integers_truncate(rank, size):
    result = hvd.allreduce(np.int64([3, -3]), op=hvd.Sum, prescale_factor=0.5)
    np.testing.assert_array_equal(result, [size, -size])


@pytest.mark.parametrize("name, wire", [("fp16", np.float16), ("bf16", np_dtype("bfloat16"))])
@pytest.mark.parametrize("mode", MODES)
def test_compression(mode, name, wire, rank, size):
    parts = [values("float32", (50,), r) for r in range(size)]
    compression = getattr(hvd.Compression, name)
    result = run(mode, lambda x: hvd.allreduce(x, op=hvd.Sum, compression=compression), parts[rank])
    assert result.dtype == np.float32
    sent = np.sum([part.astype(wire).astype(np.float64) for part in parts], axis=0)
    # The wire carries the reduced value in the same type.
    precision = {"fp16": 2.0**-10, "bf16": 2.0**-7}[name]
    np.testing.assert_allclose(result, sent, rtol=precision, atol=precision)
    if size > 1:
        exact = np.sum([part.astype(np.float64) for part in parts], axis=0)
        assert np.abs(result - exact).max() > 1e-6  # it did travel as 16 bits
    integers = run(
        mode, lambda x: hvd.allreduce(x, op=hvd.Sum, compression=compression), np.int32([3])
    )
    np.testing.assert_array_equal(integers, [3 * size])


def test_a_compressor_of_the_users_own(rank, size):
    class Halver:
        @staticmethod
        def compress(tensor):
            return tensor / 2, tensor.dtype

        @staticmethod
        def decompress(tensor, ctx):
            return tf.cast(tensor * 4, ctx)

    result = hvd.allreduce(np.float32([1.0]), op=hvd.Sum, compression=Halver)
    np.testing.assert_array_equal(result, [2 * size])
    grouped = hvd.grouped_allreduce([np.float32([1.0])], op=hvd.Sum, compression=Halver)
    np.testing.assert_array_equal(grouped[0], [2 * size])


@pytest.mark.parametrize("mode", MODES)
def test_grouped_allreduce_of_several_dtypes(mode, rank, size):
    dtypes = ["float32", "int32", "float64", "float32", "bfloat16"]
    shapes = [(2, 3), (4,), (), (1,), (3, 0)]
    parts = [[values(d, s, r) for d, s in zip(dtypes, shapes)] for r in range(size)]
    results = run(mode, lambda *xs: hvd.grouped_allreduce(list(xs), op=hvd.Sum), *parts[rank])
    for i, dtype in enumerate(dtypes):
        assert_close(results[i], reduced(hvd.Sum, [part[i] for part in parts]), dtype, 2 * size)


def test_groups_of_the_values_of_a_dict(rank, size):
    parts = {"a": tf.fill([size], 1.0), "b": tf.fill([size, 2], 2.0)}.values()
    for group in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        for part, whole in zip(group(parts), parts):
            assert (part.numpy() == whole[0].numpy()).all()


def test_empty_lists_come_back():
    nothing = []
    assert hvd.grouped_allreduce(nothing) is nothing
    assert hvd.grouped_allgather(nothing) is nothing
    assert hvd.broadcast_(nothing, 0) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_allgather(mode, dtype, rank, size):
    for rows in (lambda r: 2, lambda r: r + 1, lambda r: 0 if r == 0 else 3, lambda r: 0):
        parts = [values(dtype, (rows(r), 2), r) for r in range(size)]
        result = run(mode, hvd.allgather, parts[rank])
        assert result.dtype == np_dtype(dtype)
        np.testing.assert_array_equal(result, np.concatenate(parts))


@pytest.mark.parametrize("mode", MODES)
def test_grouped_allgather(mode, rank, size):
    def parts_of(r):
        return [
            values("float32", (r + 1, 2), r),
            values("int64", (r + 2,), r),
            values("float32", (3,), r, 1),
        ]

    results = run(mode, lambda *xs: hvd.grouped_allgather(list(xs)), *parts_of(rank))
    for i, result in enumerate(results):
        expected = np.concatenate([parts_of(r)[i] for r in range(size)])
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


def test_shapes_in_a_graph():
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [4, None, 3])
        assert hvd.allreduce(x).shape.as_list() == [4, None, 3]
        assert hvd.broadcast(x, 0).shape.as_list() == [4, None, 3]
        assert hvd.allgather(x).shape.as_list() == [None, None, 3]
        assert hvd.allgather(v1.placeholder(tf.float32)).shape.rank is None
        assert hvd.size_op().shape.rank == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_broadcast(mode, dtype, rank, size):
    for root in range(size):
        parts = [[values(dtype, shape, r, root) for shape in SHAPES] for r in range(size)]
        results = run(mode, lambda *xs: [hvd.broadcast(x, root) for x in xs], *parts[rank])
        for i, result in enumerate(results):
            assert result.dtype == np_dtype(dtype)
            np.testing.assert_array_equal(result, parts[root][i])


def test_what_a_function_captures_has_one_name_on_all_ranks(rank, size):
    others = [tf.constant(1.0) for _ in range(10 * rank)]
    first, second = tf.constant([1.0 + rank]), tf.constant([2.0 + rank])

    @tf.function
    def reduce():
        return hvd.allreduce(first, op=hvd.Sum), hvd.allgather(second), hvd.broadcast(first, 0)

    total, gathered, sent = reduce()
    assert (len(others), total.numpy().tolist()) == (10 * rank, [size + size * (size - 1) / 2])
    assert gathered.numpy().tolist() == [2.0 + r for r in range(size)]
    assert sent.numpy().tolist() == [1.0]


@pytest.mark.parametrize("mode", MODES)
def test_rank_and_size_ops(mode, rank, size):
    got = run(
        mode,
        lambda: [
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(99),
        ],
    )
    assert [int(v) for v in got] == [rank, size, hvd.local_rank(), hvd.local_size(), 1, -2]


def test_whatever_becomes_a_tensor(rank, size):
    total = sum(range(size))
    variable = tf.Variable([float(rank)])
    for value in ([float(rank)], np.array([rank]), (rank,), variable):
        np.testing.assert_array_equal(hvd.allreduce(value, op=hvd.Sum), [total])
    assert hvd.allreduce(rank, op=hvd.Sum).numpy() == total
    np.testing.assert_array_equal(hvd.allgather([[rank]]), [[r] for r in range(size)])
    assert hvd.broadcast(rank, 0).numpy() == 0


def test_average_is_an_alias(rank, size):
    with pytest.warns(DeprecationWarning, match="op=hvd"):
        assert hvd.allreduce(float(rank), average=False).numpy() == sum(range(size))
    with pytest.warns(DeprecationWarning):
        np.testing.assert_allclose(hvd.allreduce(float(rank), average=True), (size - 1) / 2)
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)


def test_ops_that_are_not_offered():
    with pytest.raises(ValueError, match="op=17"):
        hvd.grouped_allreduce([1.0], op=17)
    with pytest.raises((TypeError, tf.errors.InvalidArgumentError)):
        hvd.allreduce(tf.constant(["text"]))


def test_min_and_max_hand_nan_on(rank, size):
    part = np.float32([np.nan if rank == size - 1 else 1.0])
    for op in (hvd.Min, hvd.Max):
        assert np.isnan(hvd.allreduce(part, op=op).numpy()[0])


def test_every_float_result_is_the_same_on_all_ranks(rank, size):
    for dtype in FLOATS:
        mine = hvd.allreduce(values(dtype, (1000,), rank), op=hvd.Average)
        bits = tf.bitcast(mine, tf.uint8)
        np.testing.assert_array_equal(bits, hvd.broadcast(bits, 0))
