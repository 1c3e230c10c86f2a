# SPDX-License-Identifier: Apache-2.0
"""Sparse allreduces of a graph share a kernel where they may start together.

For the other ranks each is a call of its own.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modes import DEVICE
from test_bundles import nodes_of, several

import hvd_tf as hvd

RANKS = (1, 2, 3)
GPU = (2,)
IN_FULL = (3,)
v1 = tf.compat.v1
ROWS = 50


def bundles_of(nodes):
    """The calls of each bundle."""
    found = [node for node in nodes if node.op == "HorovodBundledSparseAllreduce"]
    return sorted(sorted(name.decode() for name in node.attr["nodes"].list.s) for node in found)


def singles_of(nodes):
    return sorted(node.name for node in nodes if node.op == "HorovodSparseAllreduce")


def table(rank, number, width, count):
    """The ids and values of a rank, some ids twice. Sums of them are exact."""
    generator = np.random.default_rng([rank, number])
    ids = generator.integers(0, ROWS, count)
    return ids, generator.integers(-64, 64, (count, width)).astype(np.float32)


def dense(ids, values, width):
    result = np.zeros((ROWS, width), np.float64)
    np.add.at(result, ids, values)
    return result


def slices(values, ids, width, known=True):
    return tf.IndexedSlices(values, ids, [ROWS, width] if known else None)


def reduced(values, ids, width, name, op=hvd.Sum, known=True):
    return hvd.allreduce(slices(values, ids, width, known), op=op, name=name)


def check(result, expected, width):
    """The result has one row for each id, ascending, and the sums."""
    ids, values = np.array(result.indices), np.array(result.values)
    assert (np.diff(ids) > 0).all()
    np.testing.assert_allclose(dense(ids, values, width), expected, rtol=1e-6)


def counts_of(rank, size):
    """How many rows the tables have. The last rank has none of some."""
    return [0 if rank == size - 1 and i % 3 == 1 else 5 + 9 * i for i in range(6)]


WIDTHS = (1, 4, 16, 5, 0, 33)


@pytest.mark.parametrize("mode", ["function", "session"])
@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("id_dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize("known", [True, False])
def test_values(mode, op, id_dtype, known, rank, size):
    def arrays_of(one):
        counts = counts_of(one, size)
        return [table(one, i, width, counts[i]) for i, width in enumerate(WIDTHS)]

    def step(*tensors):
        pairs = zip(tensors[::2], tensors[1::2])
        return [
            reduced(values, tf.cast(ids, id_dtype), width, f"t{i}", getattr(hvd, op), known)
            for i, ((ids, values), width) in enumerate(zip(pairs, WIDTHS))
        ]

    own = [array for pair in arrays_of(rank) for array in pair]
    if mode == "function":
        with tf.device(DEVICE):
            run = tf.function(step)
            for _ in range(3):
                results = run(*map(tf.constant, own))
    else:
        with tf.Graph().as_default():
            fed = [v1.placeholder(array.dtype, [None, *array.shape[1:]]) for array in own]
            results, nodes = nodes_of(step(*fed), dict(zip(fed, own)))
        if not DEVICE:
            assert bundles_of(nodes) == several([[f"t{i}" for i in range(6)]], size)
            assert len(singles_of(nodes)) == (0 if size > 1 else 6)
    every = [arrays_of(one) for one in range(size)]
    for i, (result, width) in enumerate(zip(results, WIDTHS)):
        expected = sum(dense(*of_rank[i], width) for of_rank in every)
        check(result, expected / (size if op == "Average" else 1), width)


def test_many_rows(rank, size):
    """So many that threads share the adding up."""
    count, width, tables = 20000, 32, 8

    @tf.function
    def step(ids, values):
        return [reduced(values * float(i + 1), ids, width, f"large{i}") for i in range(tables)]

    for _ in range(2):
        results = step(*map(tf.constant, table(rank, 0, width, count)))
        expected = sum(dense(*table(one, 0, width, count), width) for one in range(size))
        for i, result in enumerate(results):
            check(result, expected * (i + 1), width)


def test_what_is_bundled(rank, size):
    """What may start at once, of one dtype, index dtype and reduction, and of a table each."""
    ids, values = table(rank, 0, 4, 8)
    with tf.Graph().as_default():
        x = v1.placeholder_with_default(values, [None, 4])  # it is no constant
        where = v1.placeholder_with_default(ids, [None])
        after = tf.identity(tf.identity(x)) + 1.0
        results = [
            reduced(x, where, 4, "first"),
            reduced(x, where, 4, "second"),
            reduced(x, tf.cast(where, tf.int32), 4, "int32"),
            reduced(tf.cast(x, tf.float64), where, 4, "float64"),
            reduced(x, where, 4, "average", hvd.Average),
            reduced(after, where, 4, "later"),
            reduced(after * 2.0, where, 4, "latest"),
        ]
        grouped = hvd.grouped_allreduce([slices(x, where, 4), slices(x, where, 4)], name="group")
        results += [hvd.allreduce(x[:1] * i, name=f"dense{i}") for i in range(2)]
        _, nodes = nodes_of([results, grouped])
    assert bundles_of(nodes) == several([["first", "second"]], size)
    if size > 1:
        apart = {"int32", "float64", "average", "later", "latest"}
        assert apart <= set(singles_of(nodes))


def test_none_is_bundled_behind_a_collective(rank, size):
    ids, values = table(rank, 0, 4, 8)
    with tf.Graph().as_default():
        x = v1.placeholder_with_default(values, [None, 4])
        first = [reduced(x, ids, 4, f"first{i}") for i in range(2)]
        after = [reduced(one.values, one.indices, 4, f"after{i}") for i, one in enumerate(first)]
        results, nodes = nodes_of(after)
    assert bundles_of(nodes) == []
    expected = sum(dense(*table(one, 0, 4, 8), 4) for one in range(size)) * size
    for result in results:
        check(result, expected, 4)


def test_ranks_bundle_differently(rank, size):
    """Rank 0 makes the calls one by one, the others in a bundle of their own order."""
    ids, values = table(rank, 1, 4, 9)

    def step(values, order):
        results = {i: reduced(values * float(i + 1), ids, 4, f"w{i}") for i in order}
        return [results[i] for i in range(4)]

    run = step if rank == 0 else tf.function(step, autograph=False)
    expected = sum(dense(*table(one, 1, 4, 9), 4) for one in range(size))
    for _ in range(3):
        order = (2, 0, 3, 1) if rank == 1 else (0, 1, 2, 3)
        for i, result in enumerate(run(tf.constant(values), order)):
            check(result, expected * (i + 1), 4)


def test_an_error_names_the_tensor_and_its_node(rank, size):
    @tf.function
    def step(values, ids):
        return reduced(values, ids, 4, "good"), reduced(2.0 * values, ids + 0, 4, "also")

    ids, values = table(rank, 1, 4, 9)
    wrong = np.where(np.arange(9) == 3, ROWS, ids)
    if size > 1:
        # A peer may hear first that rank 1 has given its step up, and why.
        with pytest.raises(tf.errors.OpError) as error:
            step(values, wrong if rank == 1 else ids)
        told = f"indices[3] is {ROWS}, but the table has the rows 0 to {ROWS - 1}"
        assert told in str(error.value)
        assert "{{node good}}" in str(error.value) or "{{node also}}" in str(error.value)
    expected = sum(dense(*table(one, 1, 4, 9), 4) for one in range(size))
    for factor, result in enumerate(step(values, ids)):
        check(result, expected * (factor + 1), 4)


def test_a_rank_joins(rank, size):
    ids, values = table(rank, 1, 4, 9)

    @tf.function
    def step(values):
        return [reduced(values * i, ids, 4, f"w{i}") for i in (1.0, 2.0)]

    for turn in range(rank + 1):
        expected = sum(dense(*table(one, 1, 4, 9), 4) for one in range(turn, size))
        for factor, result in enumerate(step(values)):
            check(result, expected * (factor + 1), 4)
    assert hvd.join() == size - 1


def test_gradients_of_tables(rank, size):
    """What an optimizer applies is what one process would have computed of all ranks' rows."""
    generator = np.random.default_rng(3)
    ids = generator.integers(0, ROWS, (size, 12, 5))

    def weights():
        return [tf.Variable(tf.ones([ROWS, 3]) * 0.25 * (i + 1)) for i in range(5)]

    def gradients(variables, ids, wrap):
        with tf.GradientTape() as tape:
            looked_up = [tf.gather(v, ids[:, i]) for i, v in enumerate(variables)]
            loss = tf.reduce_sum(tf.concat(looked_up, 1) ** 2)
        return wrap(tape).gradient(loss, variables)

    def wrap(tape):
        return hvd.DistributedGradientTape(tape, op=hvd.Sum)

    with tf.device("CPU:0"):  # where tables mostly are
        variables = weights()
    got = tf.function(lambda ids: gradients(variables, ids, wrap))(tf.constant(ids[rank]))
    with tf.device("CPU:0"):
        wanted = gradients(weights(), tf.constant(ids.reshape(-1, 5)), lambda tape: tape)
    for value, expected in zip(got, wanted):
        np.testing.assert_array_equal(tf.convert_to_tensor(value), tf.convert_to_tensor(expected))
