# SPDX-License-Identifier: Apache-2.0
"""Sparse allreduces: what they send, in how many exchanges, whatever way the rows take."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (2, 3, 4)
GPU = ()  # HVD_SPARSE_ALGO is for rows in host memory

ALGORITHMS = ["auto", "allgather", "reduce_scatter", "dense"]


@pytest.fixture(params=ALGORITHMS)
def algorithm(request, monkeypatch):
    """HVD_SPARSE_ALGO, which is read by init()."""
    hvd.allgather_object(None)
    hvd.shutdown()
    monkeypatch.setenv("HVD_SPARSE_ALGO", request.param)
    hvd.init()
    yield request.param
    hvd.allgather_object(None)
    hvd.shutdown()
    monkeypatch.delenv("HVD_SPARSE_ALGO")
    hvd.init()


class Table:
    """Rows of one table, as every rank draws them for all."""

    def __init__(self, rows, width, lookups, size, seed=0, same=False):
        self.shape = (rows, width)
        self.ids = []
        for rank in range(size):
            rng = np.random.default_rng([seed, 0 if same else rank])
            self.ids.append(rng.integers(0, rows, lookups) if lookups else np.arange(rows))
        self.unique = [np.unique(ids) for ids in self.ids]
        self.united = np.unique(np.concatenate(self.ids))

    def values(self, rank):
        """Quarters: sums are exact."""
        rng = np.random.default_rng([99, rank])
        return rng.integers(-8, 8, (len(self.ids[rank]), self.shape[1])).astype(np.float32) / 4

    def slices(self, rank):
        return tf.IndexedSlices(
            tf.constant(self.values(rank)), tf.constant(self.ids[rank]), tf.constant(self.shape)
        )

    def check(self, got, algorithm):
        sums = np.zeros(self.shape)
        for rank, ids in enumerate(self.ids):
            np.add.at(sums, ids, self.values(rank))
        united = np.arange(self.shape[0]) if algorithm == "dense" else self.united
        np.testing.assert_array_equal(got.indices, united)
        np.testing.assert_array_equal(got.values, sums[united])

    def id_bytes(self, rank):
        """Nothing, where a rank has all rows; else a bit for each, or a list."""
        rows, count = self.shape[0], len(self.unique[rank])
        return 0 if count == rows else min(4 * count, (rows + 7) // 8)

    def bytes_of_all(self, algorithm):
        """The payload that all ranks send together, by decision 16."""
        size, (rows, width) = len(self.ids), self.shape
        if algorithm == "dense":
            return 2 * (size - 1) * rows * 4 * width if size > 2 else 2 * rows * 4 * width
        own, united = sum(map(len, self.unique)), len(self.united)
        ids = (size - 1) * sum(self.id_bytes(r) for r in range(size))
        to_all = ids + (size - 1) * own * 4 * width
        # What a rank has of its own rows stays with it: exact where all have the same ids.
        owned = ids + (own - own // size + (size - 1) * united) * 4 * width
        return {
            "allgather": to_all,
            "reduce_scatter": owned,
            "auto": owned if size * united < (size - 1) * own else to_all,
        }[algorithm]


def reduce_all(tables, rank, name):
    """The results, and what was sent for them: the payload of all ranks, blocks and batches."""
    before = hvd.comm_stats()["verbs"]["sparse_allreduce"]
    results = hvd.grouped_allreduce([t.slices(rank) for t in tables], op=hvd.Sum, name=name)
    after = hvd.comm_stats()["verbs"]["sparse_allreduce"]
    sent = {key: after[key] - before[key] for key in after}
    everyones = hvd.allgather_object(sent["payload_bytes"])
    return results, sum(everyones), sent


def test_every_algorithm_gives_the_same(algorithm, rank, size):
    tables = [
        Table(1000, 16, 200, size),
        Table(60, 1, 80, size, seed=1),
        Table(3, 4, 64, size, seed=2),
        Table(40, 5, 0, size, seed=3),
    ]
    results, _, sent = reduce_all(tables, rank, f"same {algorithm}")
    for table, got in zip(tables, results):
        table.check(got, algorithm)
    assert sent["collectives"] == 1
    assert sent["rows"] == sum(len(got.indices) for got in results)
    assert len(set(hvd.allgather_object(results[0].values.numpy().tobytes()))) == 1


def test_bytes_are_those_of_the_formulas(algorithm, rank, size):
    for name, table in {
        "few rows, others on each rank": Table(100000, 16, 500, size),
        "few rows, the same on all": Table(100000, 16, 500, size, same=True),
        "all rows on all ranks": Table(12 * size, 8, 0, size),
        "most rows": Table(300, 4, 900, size, same=True),
    }.items():
        if algorithm == "dense" and table.shape[0] > 1000:
            continue
        [got], payload, _ = reduce_all([table], rank, f"{name} {algorithm}")
        table.check(got, algorithm)
        if algorithm in ("auto", "reduce_scatter") and size > 2 and "others" in name:
            continue  # which rows are a rank's own depends on the cut
        if algorithm == "reduce_scatter" and "others" in name:
            continue
        assert payload == table.bytes_of_all(algorithm), name


def test_26_variables_take_two_exchanges(rank, size):
    """One of ids, and one or two of values, each in one batch: at most three blocks to a peer."""
    tables = [Table(200 + 50 * i, 4, 30, size, seed=i) for i in range(26)]

    @tf.function
    def step(*slices):
        return [hvd.allreduce(one, op=hvd.Sum, name=f"table{i}") for i, one in enumerate(slices)]

    for _ in range(3):
        before = hvd.comm_stats()["verbs"]["sparse_allreduce"]
        results = step(*[table.slices(rank) for table in tables])
        after = hvd.comm_stats()["verbs"]["sparse_allreduce"]
        for table, got in zip(tables, results):
            table.check(got, "auto")
        assert after["collectives"] - before["collectives"] == 26
        batches = after["batches"] - before["batches"]
        # Ids, values to all; or values to owners and back.
        assert after["blocks"] - before["blocks"] <= batches * (size - 1) * 4


def test_no_row_at_all(algorithm, rank, size):
    empty = tf.IndexedSlices(
        tf.zeros([0, 3]), tf.zeros([0], tf.int64), tf.constant([7, 3], tf.int64)
    )
    got = hvd.allreduce(empty, op=hvd.Sum, name=f"empty {algorithm}")
    assert got.values.shape == ([7, 3] if algorithm == "dense" else [0, 3])
    assert not np.any(got.values)


def test_ranks_that_want_different_algorithms(rank, size, monkeypatch):
    hvd.allgather_object(None)
    hvd.shutdown()
    monkeypatch.setenv("HVD_SPARSE_ALGO", "allgather" if rank == 0 else "auto")
    hvd.init()
    with pytest.raises(tf.errors.FailedPreconditionError, match="Set HVD_SPARSE_ALGO to the same"):
        hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]), [0], [3, 2]), name="different")
    hvd.allgather_object(None)
    hvd.shutdown()
    monkeypatch.delenv("HVD_SPARSE_ALGO")
    hvd.init()


def test_a_mistaken_algorithm(rank, size, monkeypatch):
    hvd.allgather_object(None)
    hvd.shutdown()
    monkeypatch.setenv("HVD_SPARSE_ALGO", "fastest")
    with pytest.raises(ValueError, match="HVD_SPARSE_ALGO='fastest' .* must be auto, allgather"):
        hvd.init()
    monkeypatch.delenv("HVD_SPARSE_ALGO")
    hvd.init()


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_compressed_values(name, op, rank, size):
    compression = getattr(hvd.Compression, name)
    narrow = compression.wire_dtype.as_numpy_dtype
    table = Table(5000, 16, 400, size)
    draws = [np.random.default_rng([9, r]).normal(size=(400, 16)) for r in range(size)]
    united = np.unique(np.concatenate(table.ids))
    expected = np.zeros([len(united), 16], np.float32)
    for ids, values in zip(table.ids, draws):
        own = np.zeros_like(expected)
        np.add.at(own, np.searchsorted(united, ids), values.astype(np.float32))
        expected += own.astype(narrow).astype(np.float32)
    expected = (expected / (size if op == hvd.Average else 1)).astype(narrow).astype(np.float32)
    slices = tf.IndexedSlices(tf.constant(draws[rank], tf.float32), table.ids[rank], table.shape)
    numbers = tf.IndexedSlices(tf.fill([2, 1], 70001), tf.constant([3, 3]), [5, 1])

    before = hvd.comm_stats()["verbs"]["sparse_allreduce"]["payload_bytes"]
    label = f"compressed {name} {op}"
    got = hvd.allreduce(slices, op=op, compression=compression, name=label)
    sent = hvd.comm_stats()["verbs"]["sparse_allreduce"]["payload_bytes"] - before
    assert got.values.dtype == tf.float32
    np.testing.assert_array_equal(got.indices, united)
    np.testing.assert_array_equal(got.values, expected)
    if size == 2:  # rows go to the other rank
        assert sent == table.id_bytes(rank) + len(table.unique[rank]) * 16 * 2

    both = hvd.grouped_allreduce([slices, numbers], op=op, compression=compression, name=label)
    np.testing.assert_array_equal(both[0].values, expected)
    # Integers are not cast, although their average is a floating number.
    average = op == hvd.Average
    np.testing.assert_array_equal(both[1].values, [[2 * 70001 * (1 if average else size)]])


def test_the_gradient_of_compressed_values_is_compressed(rank, size):
    values = tf.Variable(tf.ones([3, 2]))
    with tf.GradientTape() as tape:
        slices = tf.IndexedSlices(values, tf.constant([1, 4, 1]), tf.constant([6, 2]))
        reduced = hvd.allreduce(
            slices, op=hvd.Sum, compression=hvd.Compression.fp16, name="compressed"
        )
        loss = tf.reduce_sum(reduced.values * (1 + 2.0**-12))  # not a float16
    gradient = tape.gradient(loss, values)
    np.testing.assert_array_equal(gradient, np.ones([3, 2], np.float32))
