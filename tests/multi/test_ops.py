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


def reduced(op, parts):
    """The exact result of the op, rounded as each dtype is: not at all in float64."""
    wide = [np.asarray(part, np.float64) for part in parts]
    if op == hvd.Average:
        total = np.sum(wide, axis=0)
        return (
            total / len(parts) if parts[0].dtype.kind not in "iu" else np.trunc(total / len(parts))
        )
    if op == hvd.Sum:
        return np.sum(wide, axis=0)
    return {hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}[op](wide, axis=0)


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


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d not in ("uint16", "int16")])
def test_broadcast_resource_variables(dtype, rank, size):
    root = size - 1
    parts = [[values(dtype, shape, r) for shape in SHAPES] for r in range(size)]
    variables = [tf.Variable(part) for part in parts[rank]]
    before = [variable.read_value() for variable in variables]
    results = hvd.broadcast_(variables, root)
    for i, variable in enumerate(variables):
        np.testing.assert_array_equal(variable.numpy(), parts[root][i])
        np.testing.assert_array_equal(results[i].numpy(), parts[root][i])
        # Who has read the old value keeps it.
        np.testing.assert_array_equal(before[i].numpy(), parts[rank][i])


@pytest.mark.parametrize("in_function", [False, True])
def test_broadcast_variables_of_several_dtypes(in_function, rank, size):
    variables = [tf.Variable(np.float32([rank, 1])), tf.Variable(rank), tf.Variable(float(rank))]

    def call():
        return hvd.broadcast_(variables, 0)

    results = (tf.function(call) if in_function else call)()
    for variable, result, expected in zip(variables, results, ([0, 1], 0, 0.0)):
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(variable, expected)


@pytest.mark.parametrize("use_resource", [False, True])
def test_broadcast_variables_of_a_session(use_resource, rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable("a", initializer=np.float32([rank, 2]), use_resource=use_resource),
            v1.get_variable("b", initializer=np.float32(rank), use_resource=use_resource),
        ]
        synced = hvd.broadcast_(variables, size - 1, name="sync")
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            got = session.run(synced)
            np.testing.assert_array_equal(got[0], [size - 1, 2])
            np.testing.assert_array_equal(got[1], size - 1)
            np.testing.assert_array_equal(session.run(variables)[1], size - 1)


def test_resource_and_reference_variables_do_not_mix():
    with tf.Graph().as_default():
        variables = [
            v1.get_variable("a", initializer=1.0, use_resource=False),
            v1.get_variable("b", initializer=1.0, use_resource=True),
        ]
        with pytest.raises(ValueError, match="not both"):
            hvd.broadcast_(variables, 0)


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
