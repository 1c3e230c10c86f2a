# SPDX-License-Identifier: Apache-2.0
"""GradientReducer: which gradients are reduced, how, together with which, and under which name."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf._internal import gradients as module
from hvd_tf._internal.compat import variable_key
from hvd_tf._internal.gradients import GradientReducer, checked_groups, plan_groups
from hvd_tf._internal.names import InstanceName, variable_names

RANKS = (2,)
IN_FULL = (4, "2x2")

v1 = tf.compat.v1
REDUCTIONS = {
    "Average": lambda parts: np.mean(parts, axis=0),
    "Sum": lambda parts: np.sum(parts, axis=0),
    "Min": lambda parts: np.min(parts, axis=0),
    "Max": lambda parts: np.max(parts, axis=0),
    "Product": lambda parts: np.prod(parts, axis=0),
}


@pytest.fixture
def recorded(monkeypatch):
    """The (names, member counts, wire dtypes) of dense reductions, as they are built."""
    calls = []
    original = module.ops.dense_allreduce

    def record(tensors, **kwargs):
        calls.append((kwargs["tensor_name"], len(tensors), kwargs["wire_dtype"]))
        return original(tensors, **kwargs)

    monkeypatch.setattr(module.ops, "dense_allreduce", record)
    return calls


def values_of(rank, shape=(3, 2), dtype=np.float32, seed=0):
    return np.random.default_rng([seed, rank]).standard_normal(shape).astype(dtype)


def all_values(size, **kwargs):
    return [values_of(rank, **kwargs).astype(np.float64) for rank in range(size)]


def variables_for(*tensors):
    return [tf.Variable(tf.zeros_like(t), name=f"w{i}") for i, t in enumerate(tensors)]


def slices_of(rank):
    """Two or three rows of six, one of them twice."""
    indices = [rank, 5, rank][: 2 + rank % 2]
    values = values_of(rank, shape=(len(indices), 2), seed=7)
    return indices, values


def sparse_gradient(rank):
    indices, values = slices_of(rank)
    shape = tf.constant([6, 2], tf.int64)
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices, tf.int64), shape)


def dense_from_slices(size):
    total = np.zeros((6, 2))
    for rank in range(size):
        indices, values = slices_of(rank)
        np.add.at(total, indices, values)
    return total


@pytest.mark.parametrize("op", list(REDUCTIONS))
def test_dense_gradients_match_numpy(hvd, rank, size, op):
    dtypes = [np.float32, np.float64, np.float16]
    gradients = [tf.constant(values_of(rank, dtype=dtype)) for dtype in dtypes]
    reducer = GradientReducer(f"dense_{op}", op=getattr(hvd, op))
    reduced = reducer.reduce(gradients, variables_for(*gradients))
    for dtype, result in zip(dtypes, reduced):
        expected = REDUCTIONS[op](all_values(size, dtype=dtype))
        assert result.dtype == dtype and result.shape == (3, 2)
        tolerance = {np.float16: 2e-3, np.float32: 1e-6, np.float64: 1e-14}[dtype]
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_none_keeps_its_place(rank, size):
    gradient = tf.constant(values_of(rank))
    a, b, c = variables_for(gradient, gradient, gradient)
    first, second, third = GradientReducer("none").reduce([None, gradient, None], [a, b, c])
    assert first is None and third is None
    np.testing.assert_allclose(second, np.mean(all_values(size), axis=0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_slices_hold_the_sums_of_all_ranks(hvd, rank, size, op):
    table = tf.Variable(tf.zeros((6, 2)), name="table")
    reducer = GradientReducer(f"sparse_{op}", op=getattr(hvd, op))
    [result] = reducer.reduce([sparse_gradient(rank)], [table])
    assert isinstance(result, tf.IndexedSlices)
    rows = {index for r in range(size) for index in slices_of(r)[0]}
    assert result.indices.numpy().tolist() == sorted(rows)
    expected = dense_from_slices(size) / (size if op == "Average" else 1)
    np.testing.assert_allclose(tf.convert_to_tensor(result), expected, rtol=1e-5, atol=1e-6)


def test_sparse_as_dense(rank, size):
    table = tf.Variable(tf.zeros((6, 2)), name="table")
    [result] = GradientReducer("densified", sparse_as_dense=True).reduce(
        [sparse_gradient(rank)], [table]
    )
    assert not isinstance(result, tf.IndexedSlices)
    np.testing.assert_allclose(result, dense_from_slices(size) / size, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factor", [2.0, 3.0, 0.5])
def test_predivide_factor_leaves_the_average(rank, size, factor):
    gradients = [tf.constant(values_of(rank, dtype=np.float64)), sparse_gradient(rank)]
    variables = [tf.Variable(tf.zeros((3, 2), tf.float64), name="w"), tf.Variable(tf.zeros((6, 2)))]
    dense, sparse = GradientReducer(f"by {factor}", gradient_predivide_factor=factor).reduce(
        gradients, variables
    )
    expected = np.mean(all_values(size, dtype=np.float64), axis=0)
    np.testing.assert_allclose(dense, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(
        tf.convert_to_tensor(sparse), dense_from_slices(size) / size, rtol=1e-5, atol=1e-6
    )


def test_groups_travel_together(rank, size, recorded):
    gradients = [
        tf.constant(values_of(rank, seed=0)),
        tf.constant(values_of(rank, seed=1, dtype=np.float64)),
        None,
        sparse_gradient(rank),
        tf.constant(values_of(rank, seed=2)),
        tf.constant(values_of(rank, seed=3)),
    ]
    shapes = [g.shape if g is not None else () for g in gradients]
    variables = [tf.Variable(np.zeros(shape), name=f"w{i}") for i, shape in enumerate(shapes)]
    groups = [[variables[4], variables[0], variables[1]], [variables[2], variables[3]]]
    result = GradientReducer("lists", groups=groups).reduce(gradients, variables)
    for i, seed, dtype in [(0, 0, "f4"), (1, 1, "f8"), (4, 2, "f4"), (5, 3, "f4")]:
        expected = np.mean(all_values(size, seed=seed, dtype=dtype), axis=0)
        np.testing.assert_allclose(result[i], expected, rtol=1e-6, atol=1e-7)
    # float64 cannot share a group with float32. `w5` is in no group. Slices travel on their own.
    assert [(name, count) for name, count, _ in recorded] == [
        ("gradient/lists/w0 and 1 more", 2),
        ("gradient/lists/w1", 1),
        ("gradient/lists/w5", 1),
    ]


def test_plan_groups():
    floats = [tf.float32] * 5
    assert plan_groups("abcde", floats, None) == [[0], [1], [2], [3], [4]]
    assert plan_groups("abcde", floats, 2) == [[0, 1], [2, 3, 4]]
    assert plan_groups("abcde", floats, 9) == [[0], [1], [2], [3], [4]]
    mixed = [tf.float32, tf.float16, tf.float32, tf.float16, tf.float32]
    assert plan_groups("abcde", mixed, 1) == [[0, 2, 4], [1, 3]]
    a, b, c = (tf.Variable(0.0) for _ in range(3))
    keys = [variable_key(v) for v in (a, b, c)]
    assert plan_groups(keys, floats[:3], [[c, a]]) == [[0, 2], [1]]
    assert plan_groups(keys, floats[:3], [[b]]) == [[0], [1], [2]]
    assert plan_groups([], [], 3) == []


@pytest.mark.parametrize("groups", [0, -1, "ab", True, [1, 2], 1.5])
def test_malformed_groups(groups):
    with pytest.raises(ValueError, match="groups must be a number above 0 or a list of lists"):
        GradientReducer("x", groups=groups)


def test_a_variable_in_two_groups_and_num_groups():
    variable = tf.Variable(0.0, name="twice")
    with pytest.raises(ValueError, match="twice:0' twice"):
        GradientReducer("x", groups=[[variable], [variable]])
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert checked_groups(None, 3) == 3


def test_other_malformed_arguments(hvd):
    with pytest.raises(ValueError, match="gradient_predivide_factor=2.0"):
        GradientReducer("x", op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="needs op=Average"):
        GradientReducer("x", op=hvd.Adasum, gradient_predivide_factor=2.0)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_compression_rides_the_wire(hvd, rank, size, recorded, kind):
    gradients = [
        tf.constant(values_of(rank)),
        tf.constant(values_of(rank, dtype=np.float64)),
        tf.constant(values_of(rank, dtype=np.float16)),
        tf.constant([rank], tf.int32),
    ]
    reducer = GradientReducer(kind, compression=getattr(hvd.Compression, kind))
    result = reducer.reduce(gradients, variables_for(*gradients))
    wire = {"fp16": tf.float16, "bf16": tf.bfloat16}[kind]
    assert [dtype for _, _, dtype in recorded] == [wire, wire, None, None]
    assert [t.dtype for t in result] == [tf.float32, tf.float64, tf.float16, tf.int32]
    tolerance = {"fp16": 2e-3, "bf16": 2e-2}[kind]
    for tensor, dtype in zip(result[:3], (np.float32, np.float64, np.float16)):
        expected = np.mean(all_values(size, dtype=dtype), axis=0)
        np.testing.assert_allclose(tensor, expected, rtol=tolerance, atol=tolerance)


def test_compressors_called_directly(hvd):
    numbers = tf.constant([1.0, 2.5], tf.float64)
    for kind, dtype in (("fp16", tf.float16), ("bf16", tf.bfloat16)):
        compressor = getattr(hvd.Compression, kind)
        compressed, context = compressor.compress(numbers)
        assert compressed.dtype == dtype
        restored = compressor.decompress(compressed, context)
        assert restored.dtype == tf.float64 and restored.numpy().tolist() == [1.0, 2.5]
        integers = tf.constant([1, 2])
        same, context = compressor.compress(integers)
        assert same.dtype == tf.int32 and compressor.decompress(same, context).dtype == tf.int32
    assert hvd.Compression.none.compress(numbers)[0] is numbers


@pytest.mark.parametrize("base", ["Compressor", "fp16"])
def test_own_compressor_is_called(hvd, rank, size, recorded, base):
    parent = hvd.compression.Compressor if base == "Compressor" else hvd.Compression.fp16

    class Scaled(parent):
        @staticmethod
        def compress(tensor):
            return tf.cast(tensor * 64.0, tf.float64), (tensor.dtype, 64.0)

        @staticmethod
        def decompress(tensor, ctx):
            return tf.cast(tensor / ctx[1], ctx[0])

    gradients = [tf.constant(values_of(rank, seed=s)) for s in (0, 1)]
    reducer = GradientReducer(f"own {base}", compression=Scaled, groups=1)
    result = reducer.reduce(gradients, variables_for(*gradients))
    assert [(count, wire) for _, count, wire in recorded] == [(2, None)]
    for seed, tensor in enumerate(result):
        assert tensor.dtype == tf.float32
        expected = np.mean(all_values(size, seed=seed), axis=0)
        np.testing.assert_allclose(tensor, expected, rtol=1e-6, atol=1e-7)


def test_outside_the_process_set_gradients_stay(others, rank, size, recorded):
    gradients = [tf.constant(values_of(rank)), sparse_gradient(rank)]
    variables = [tf.Variable(tf.zeros((3, 2)), name="w"), tf.Variable(tf.zeros((6, 2)), name="t")]
    dense, sparse = GradientReducer("set", process_set=others).reduce(gradients, variables)
    if rank == 0 or size == 2:
        assert dense is gradients[0] and sparse is gradients[1] and recorded == []
    else:
        expected = np.mean(all_values(size)[1:], axis=0)
        np.testing.assert_allclose(dense, expected, rtol=1e-6, atol=1e-7)
        assert [name for name, _, _ in recorded] == ["gradient/set/w"]
        rows = {index for r in range(1, size) for index in slices_of(r)[0]}
        assert sparse.indices.numpy().tolist() == sorted(rows)


@pytest.mark.parametrize("scale", [True, False])
def test_local_variables_stay_on_their_rank(rank, size, recorded, scale):
    gradients = [tf.constant(values_of(rank)), sparse_gradient(rank), tf.constant([1.0])]
    variables = [tf.Variable(tf.zeros((3, 2))), tf.Variable(tf.zeros((6, 2))), tf.Variable([0.0])]
    reducer = GradientReducer("local", scale_local_gradients=scale)
    reducer.register_local_var(variables[0])
    reducer.register_local_var(variables[1])
    dense, sparse, reduced = reducer.reduce(gradients, variables)
    divisor = size if scale else 1
    np.testing.assert_allclose(dense, values_of(rank) / divisor, rtol=1e-6)
    assert isinstance(sparse, tf.IndexedSlices)
    np.testing.assert_allclose(sparse.values, slices_of(rank)[1] / divisor, rtol=1e-6)
    assert sparse.indices.numpy().tolist() == slices_of(rank)[0]
    assert reduced.numpy() == [1.0] and len(recorded) == 1


def test_variables_that_share_a_name(rank, size, recorded):
    gradients = [tf.constant(values_of(rank, seed=s)) for s in range(3)]
    variables = [tf.Variable(tf.zeros((3, 2)), name="same") for _ in range(3)]
    result = GradientReducer("shared").reduce(gradients, variables)
    assert [n for n, _, _ in recorded] == [f"gradient/shared/same{x}" for x in ("", "#1", "#2")]
    for seed, tensor in enumerate(result):
        np.testing.assert_allclose(
            tensor, np.mean(all_values(size, seed=seed), axis=0), rtol=1e-6, atol=1e-7
        )


def test_variable_names_are_unique():
    names = ["a", "a#1", "b", "a", "a", "b"]
    named = [SimpleNamespace(name=f"{name}:0") for name in names]
    assert variable_names(named) == ["a", "a#1", "b", "a#2", "a#3", "b#1"]
    assert variable_names([tf.Variable(0.0, name="x") for _ in range(2)]) == ["x", "x#1"]


def test_instance_names():
    first, second, other = InstanceName("SGD"), InstanceName("SGD"), InstanceName("Adam")
    with tf.Graph().as_default():
        # A graph that runs tells apart what both calls have added to it.
        assert [first.for_call(0, []), first.for_call(0, [])] == ["SGD", "SGD"]
        assert [second.for_call(0, []), other.for_call(0, [])] == ["SGD_1", "Adam"]
        # Another process set matches names by itself.
        assert InstanceName("SGD").for_call(1, []) == "SGD"
    with tf.Graph().as_default():  # nothing is left from other graphs
        assert [second.for_call(0, []), first.for_call(0, [])] == ["SGD", "SGD_1"]
    vector, matrix = [tf.Variable([1.0])], [tf.Variable([[1.0]])]
    eager, later = InstanceName("Eager"), InstanceName("Eager")
    assert [eager.for_call(0, variables) for variables in (vector, matrix)] == ["Eager"] * 2
    traced = []

    @tf.function
    def step(x):
        traced.append([eager.for_call(0, vector), later.for_call(0, matrix)])
        return x

    step(tf.zeros(1))
    step(tf.zeros(2))  # a retrace gets the same names
    assert traced == [["Eager", "Eager_1"]] * 2
    assert later.for_call(0, vector) == "Eager_1"
    for variables, name in [(vector, "Eager"), (matrix, "Eager_1"), (vector * 2, "Eager_2")]:
        assert InstanceName("Eager").for_call(0, variables) == name
    assert InstanceName("Helper").for_call(0, [None, tf.zeros(1)]) == "Helper"


def test_an_optimizer_that_one_rank_alone_has_made_anew(rank, size):
    """As a rank does that loads its model between two trainings."""
    variable, reducer = tf.Variable(tf.zeros((3, 2)), name="w"), GradientReducer("reloaded")
    for _ in range(2):
        [result] = reducer.reduce([tf.constant(values_of(rank))], [variable])
        np.testing.assert_allclose(result, np.mean(all_values(size), axis=0), rtol=1e-6, atol=1e-7)
        reducer = GradientReducer("reloaded") if rank == 0 else reducer


def test_ranks_that_trace_differently_still_meet(rank, size):
    reducer = GradientReducer("retraced")
    variable = tf.Variable(tf.zeros((3, 2)), name="w")

    @tf.function
    def step(x, _):
        return reducer.reduce([x], [variable])[0]

    x = tf.constant(values_of(rank))
    for i in range(6):
        result = step(x, i if rank == 0 else 0)  # rank 0 retraces every time
        np.testing.assert_allclose(result, np.mean(all_values(size), axis=0), rtol=1e-6, atol=1e-7)


def test_ranks_that_build_further_graphs_still_meet(rank, size):
    if rank == 0:
        for _ in range(3):
            with tf.Graph().as_default():
                variable = v1.get_variable("w", [3, 2])
                GradientReducer("graphs").reduce([tf.zeros((3, 2))], [variable])
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", [3, 2])
        [result] = GradientReducer("graphs").reduce([tf.constant(values_of(rank))], [variable])
        expected = np.mean(all_values(size), axis=0)
        np.testing.assert_allclose(session.run(result), expected, rtol=1e-6, atol=1e-7)
