# SPDX-License-Identifier: Apache-2.0
"""allreduce of tf.IndexedSlices, alone and beside tensors, in every mode, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modes import MODES, run, values

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2,)
HOSTS = "2x2"
GPU = (2,)


def slices_of(rank, rows=2, columns=3, seed=0, dtype="float32"):
    rng = np.random.default_rng([seed, rank])
    return (
        values(dtype, (rows + rank, columns), rank, seed),
        rng.integers(0, 10, rows + rank),
        np.array([10, columns]),
    )


def unique_rows(parts):
    """The indices of any part, ascending, and the sum of their rows in float64."""
    indices = np.concatenate([part[1] for part in parts])
    rows = np.concatenate([part[0] for part in parts]).astype(np.float64)
    united = np.unique(indices)
    sums = np.zeros((len(united), *rows.shape[1:]))
    np.add.at(sums, np.searchsorted(united, indices), rows)
    return united, sums


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("average", [False, True])
def test_allreduce_of_slices(mode, average, rank, size):
    op = hvd.Average if average else hvd.Sum
    parts = [slices_of(r) for r in range(size)]
    got = run(mode, lambda v, i, s: hvd.allreduce(tf.IndexedSlices(v, i, s), op=op), *parts[rank])
    united, sums = unique_rows(parts)
    np.testing.assert_array_equal(got[1], united)
    np.testing.assert_allclose(got[0], sums / (size if average else 1), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(got[2], [10, 3])
    assert len(set(hvd.allgather_object(got[0].tobytes()))) == 1  # the same bits everywhere


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_slices_of_every_dtype_add_up_to_the_bit(dtype, index, rank, size):
    """Whole numbers; the last rank has no rows, and one table has none at all."""

    def part(of_rank, columns, rows):
        rng = np.random.default_rng([*columns, of_rank])
        rows = 0 if of_rank == size - 1 and size > 1 else rows
        return rng.integers(0, 3, (rows, *columns)), rng.integers(0, 12, rows)

    for columns, rows in [((), 9), ((5,), 30), ((2, 3), 7), ((4,), 0)]:
        values, indices = part(rank, columns, rows)
        slices = tf.IndexedSlices(
            tf.cast(values, dtype), tf.constant(indices, index), tf.constant([12, *columns])
        )
        got = hvd.allreduce(slices, op=hvd.Sum, name=f"{dtype} {index} {columns}")
        united, sums = unique_rows([part(r, columns, rows) for r in range(size)])
        assert got.values.dtype == dtype and got.indices.dtype == index
        np.testing.assert_array_equal(got.indices, united)
        np.testing.assert_array_equal(tf.cast(got.values, tf.float64), sums)


def test_any_index_of_a_table_that_is_not_known(rank, size):
    highest = 2**63 - 1
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([highest, rank], tf.int64))
    got = hvd.allreduce(slices, op=hvd.Sum, name="any index")
    assert got.indices.numpy().tolist() == [*range(size), highest]
    np.testing.assert_array_equal(got.values[:, 0], [*[1] * size, size])


def test_slices_that_cannot_be_rows_of_the_table(rank, size):
    """Whoever has them, all ranks hear why."""
    wrong = [
        ([3, 7], r"indices\[1\] is 7, but the table has the rows 0 to 6, by its dense_shape"),
        ([-1, 2], r"indices\[0\] is -1, but the table has the rows 0 to 6"),
        ([1], r"indices of the shape \[1\] for 2 rows of values; pass one index for each row"),
    ]
    shape = tf.constant([7, 2])
    for i, (indices, words) in enumerate(wrong):
        mine = indices if rank == size - 1 else [0, 1]
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"table{i}.*{words}"):
            hvd.allreduce(tf.IndexedSlices(tf.ones([2, 2]), mine, shape), name=f"table{i}")
    with pytest.raises(tf.errors.InvalidArgumentError, match="no index may be negative"):
        hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), [-1 if rank == 0 else 4]), name="unknown")
    if size > 1:
        differing = [
            (tf.ones([1, 2 + rank]), [7, 2 + rank], "shape behind the first dimension"),
            (tf.ones([1, 2]), [7 + rank, 2], "number of rows of the table"),
            (tf.ones([1, 2], tf.float32 if rank else tf.float64), [7, 2], "dtype"),
        ]
        for i, (values, dims, words) in enumerate(differing):
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"{words}.*differing{i}"):
                hvd.allreduce(tf.IndexedSlices(values, [0], dims), name=f"differing{i}")
        with pytest.raises(tf.errors.FailedPreconditionError, match="Make the table equally large"):
            hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), [0], [7 + rank, 2]), name="larger")
        mixed = tf.ones([7, 2]) if rank else tf.IndexedSlices(tf.ones([1, 2]), [0], shape)
        kinds = r"kind of tensor.*'mixed' \(rank 0: tf.IndexedSlices; ranks? .*: dense\)"
        with pytest.raises(tf.errors.FailedPreconditionError, match=f"{kinds}.*sparse_as_dense"):
            hvd.allreduce(mixed, name="mixed")
    # Nothing is lost.
    got = hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), [rank], shape), op=hvd.Sum)
    assert got.indices.numpy().tolist() == list(range(size))


@pytest.mark.parametrize("mode", MODES)
def test_sums_of_narrow_slices_are_all_rows(mode, rank, size):
    rows = np.array([[rank, 1], [2, 3]])
    for dtype in ("bool", "int16", "uint16"):
        got = run(
            mode,
            lambda v, i: hvd.allreduce(tf.IndexedSlices(v, i, tf.constant([9, 2])), op=hvd.Sum),
            rows.astype(dtype),
            np.array([4, 4]),
        )
        expected = np.concatenate([np.array([[r, 1], [2, 3]]) for r in range(size)]).astype(dtype)
        np.testing.assert_array_equal(got[0], expected)
        np.testing.assert_array_equal(got[1], [4, 4] * size)


@pytest.mark.parametrize("mode", MODES)
def test_grouped_allreduce_of_tensors_and_slices(mode, rank, size):
    first, second = slices_of(rank, columns=3), slices_of(rank, columns=4, seed=1)

    def call(dense, *slices):
        a, b = tf.IndexedSlices(*slices[:3]), tf.IndexedSlices(*slices[3:])
        return hvd.grouped_allreduce([dense, a, dense * 2, b], op=hvd.Sum)

    x, a, y, b = run(mode, call, np.float32([rank]), *first, *second)
    np.testing.assert_array_equal(x, [sum(range(size))])
    np.testing.assert_array_equal(y, [2 * sum(range(size))])
    for got, columns, seed in ((a, 3, 0), (b, 4, 1)):
        parts = [slices_of(r, columns=columns, seed=seed) for r in range(size)]
        united, sums = unique_rows(parts)
        np.testing.assert_allclose(got[0], sums, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(got[1], united)
        np.testing.assert_array_equal(got[2], [10, columns])


def test_slices_of_arrays_within_a_function(rank, size):
    parts = [slices_of(r) for r in range(size)]
    # TensorFlow numbers eager tensors, and what a function captures is named by that number.
    others = [tf.constant(1.0) for _ in range(10 * rank)]
    assert len(others) == 10 * rank
    arrays = tf.IndexedSlices(*parts[rank])
    tensors = tf.IndexedSlices(*(tf.constant(part) for part in parts[rank]))

    @tf.function
    def reduce():
        return [
            hvd.allreduce(arrays, op=hvd.Sum),
            hvd.allreduce(tensors, op=hvd.Sum),
            *hvd.grouped_allreduce([tensors, arrays], op=hvd.Sum),
        ]

    united, sums = unique_rows(parts)
    for got in reduce():
        np.testing.assert_array_equal(got.indices, united)
        np.testing.assert_allclose(got.values, sums, rtol=1e-6, atol=1e-6)


def test_slices_of_complex_numbers_are_refused():
    slices = tf.IndexedSlices(tf.constant([[1 + 2j]]), [0], [1, 1])
    for op in (hvd.Sum, hvd.Average):
        with pytest.raises((TypeError, tf.errors.OpError), match="complex"):
            hvd.allreduce(slices, op=op)


@pytest.mark.parametrize("mode", MODES)
def test_averages_of_integer_slices_are_true_divisions(mode, rank, size):
    """As with Horovod: single, in a group, and in a group with a tensor."""
    quotients = {"uint8": "float32", "int16": "float32", "int32": "float64", "int64": "float64"}

    def rows(dtype, of_rank):
        return np.array([[3 * of_rank + 1, 250 if dtype == "uint8" else -7]], dtype)

    def call(x, *rows_of_dtypes):
        index, shape = tf.constant([rank]), tf.constant([size, 2])
        slices = [tf.IndexedSlices(part, index, shape) for part in rows_of_dtypes]
        first, *others = slices
        mixed = hvd.grouped_allreduce([others[0], x, *others[1:]], op=hvd.Average)
        return hvd.allreduce(first, op=hvd.Average), hvd.grouped_allreduce(slices), mixed

    single, grouped, mixed = run(
        mode, call, np.float32([rank]), *[rows(dtype, rank) for dtype in quotients]
    )
    dense = mixed.pop(1)
    np.testing.assert_array_equal(dense, [sum(range(size)) / size])
    dtypes = list(quotients)
    for got, dtype in zip([single, *grouped, *mixed], ["uint8", *dtypes, *dtypes[1:]]):
        expected = np.concatenate([rows(dtype, r) for r in range(size)]).astype(quotients[dtype])
        assert got[0].dtype == quotients[dtype]
        np.testing.assert_array_equal(got[0], expected / got[0].dtype.type(size))
        np.testing.assert_array_equal(got[1], np.arange(size))


def test_slices_refuse_what_they_cannot_do(size):
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([0]), tf.constant([3, 1]))
    for wrong in ({"op": hvd.Min}, {"prescale_factor": 0.5}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.allreduce(slices, **wrong)
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            hvd.grouped_allreduce([tf.constant(1.0), slices], **wrong)
    flags = tf.IndexedSlices(tf.constant([[True]]), tf.constant([0]), tf.constant([3, 1]))
    with pytest.raises(ValueError, match="Average cannot divide tf.IndexedSlices of bool"):
        hvd.grouped_allreduce([slices, flags], op=hvd.Average)
    # Nothing was sent: the next call finds its peers.
    assert hvd.allreduce(slices, op=hvd.Sum).values.numpy().tolist() == [[size]]
