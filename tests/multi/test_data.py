# SPDX-License-Identifier: Apache-2.0
"""Shares of files and datasets: every record once, or dropped as announced. Errors on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from shares import (
    as_numpy,
    check_steps,
    everyones,
    flat,
    numbers,
    with_length,
    without_length,
    write_tfrecords,
)

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3,)

v1 = tf.compat.v1


# ---- files -------------------------------------------------------------------------------------


def test_equal_files_go_whole(folder, rank, size, capfd):
    pattern = write_tfrecords(folder, [10] * size, rank)
    steps = numbers(hvd.data.shard(pattern, 4))
    assert check_steps(steps, 10 * size, 0) == list(range(10 * size))
    assert flat(steps) == list(range(10 * rank, 10 * rank + 10))
    assert [len(step) for step in steps] == [4, 4, 2]
    told = capfd.readouterr().err
    assert ("files are shared out whole" in told) == (rank == 0)


@pytest.mark.parametrize(
    ("counts", "batch_size"), [((7,), None), ((9, 4, 1), 3), ((5, 0, 6), 1), ((20, 1, 1, 1), 4)]
)
def test_unequal_files_are_dealt_out_by_record(folder, rank, size, counts, batch_size):
    total = sum(counts)
    pattern = write_tfrecords(folder, counts, rank)
    steps = numbers(hvd.data.shard(pattern, batch_size))
    taken = len(steps) if batch_size is None else None
    check_steps(steps, total, size * (batch_size or 1))
    if taken is not None:
        assert taken == total // size
    assert flat(steps) == list(range(rank, total, size))[: len(flat(steps))]


def test_every_record_once_for_evaluation(folder, rank, size):
    pattern = write_tfrecords(folder, (8, 3), rank)
    steps = numbers(hvd.data.shard(pattern, 2, uneven="keep"))
    assert sorted(sum(map(flat, everyones(steps)), [])) == list(range(11))


def test_repeated_records(folder, rank, size):
    total = 4 * size - 1
    pattern = write_tfrecords(folder, (total,), rank)
    steps = numbers(hvd.data.shard(pattern, uneven="repeat"))
    assert len(steps) == 4
    mine = list(range(rank, total, size))
    assert [step[0] for step in steps] == (mine + mine)[:4]


def test_epochs_have_orders_of_their_own_that_come_again(folder, rank, size):
    pattern = write_tfrecords(folder, [20] * size, rank)
    asked = {"shuffle_buffer": 100, "seed": 5}
    tf.random.set_seed(rank)  # the program's own seed does not matter
    two = [numbers(hvd.data.shard(pattern, 5, epochs=2, **asked)) for _ in range(2)]
    tf.random.set_seed(None)
    assert two[0] == two[1]
    first, second = two[0][:4], two[0][4:]
    assert first != second and flat(first) == flat(second) == list(range(20 * rank, 20 * rank + 20))
    again = numbers(hvd.data.shard(pattern, 5, first_epoch=1, **asked))
    assert again == second
    assert numbers(hvd.data.shard(pattern, 5, shuffle_buffer=100, seed=6)) != first
    orders = everyones([[number - 20 * rank for number in step] for step in first])
    assert len({str(order) for order in orders}) == size


def test_records_are_dealt_out_of_one_order_of_shuffled_files(folder, rank, size):
    pattern = write_tfrecords(folder, (3, 9, 2, 5, 4), rank)
    steps = numbers(hvd.data.shard(pattern, 2, epochs=3, shuffle_buffer=50))
    counts = np.bincount(sum(map(flat, everyones(steps)), []), minlength=23)
    assert counts.max() <= 3 and 3 * 23 - counts.sum() <= 3 * 2 * size


def test_endless_epochs(folder, rank, size):
    pattern = write_tfrecords(folder, (5, 2), rank)
    dataset = hvd.data.shard(pattern, 4, epochs=None)
    steps = numbers(dataset.take(6))
    assert [len(step) for step in steps] == [4] * 6
    mine = list(range(rank, 7, size))
    assert sum(steps, []) == (mine * 24)[:24]


def test_endless_shuffled_passes_read_each_record_once(rank, size):
    total, read = 12 * size, []

    def noted(number):
        read.append(number)
        return number

    records = tf.data.Dataset.range(total).map(lambda n: tf.numpy_function(noted, [n], tf.int64))
    dataset = hvd.data.shard(records, epochs=None, shuffle_buffer=total)
    taken = [int(number) for number in dataset.take(3 * 12).as_numpy_iterator()]
    assert np.bincount(taken, minlength=total).max() == 3
    # In the beginning one record is read to see that there are some.
    assert len(read) <= 3 * total + size


def test_csv(folder, rank, size):
    if rank == 0:
        for part in range(2):
            rows = "".join(f'{i},"a ""{i}"",\n b",\n' for i in range(part * 6, part * 6 + 6))
            Path(folder, f"{part}.csv").write_text(f"number,text,extra\n{rows}")
    hvd.broadcast_object(None, name="written")
    columns = {"number": tf.int32, "extra": 0.5, "text": tf.string}
    (first, *_) = as_numpy(hvd.data.shard(f"{folder}/*.csv", columns={"extra": b"none"}))
    assert first == {"extra": b"none"}
    steps = as_numpy(hvd.data.shard(f"{folder}/*.csv", 3, columns=columns))
    assert all(step["number"].dtype == np.int32 for step in steps)
    assert all((step["extra"] == np.float32(0.5)).all() for step in steps)
    for step in steps:
        assert step["text"].tolist() == [b'a "%d",\n b' % i for i in step["number"]]
    check_steps([step["number"].tolist() for step in steps], 12, 3 * size)
    (first, *_) = as_numpy(hvd.data.shard(f"{folder}/*.csv", columns=["number"]))
    assert first == {"number": b"%d" % rank}


def test_parquet(folder, rank, size, capfd):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    total = 10 * size + 2
    if rank == 0:
        for part, (start, end) in enumerate([(0, 7), (7, total)]):
            table = {
                "number": pa.array(range(start, end), pa.int64()),
                "weight": pa.array([None if i == 3 else i / 2 for i in range(start, end)]),
                "text": [f"t{i}" for i in range(start, end)],
            }
            parquet.write_table(pa.table(table), f"{folder}/{part}.parquet", row_group_size=4)
    hvd.broadcast_object(None, name="written")
    dataset = hvd.data.shard(f"{folder}/*.parquet", 4)
    steps = as_numpy(dataset)
    assert dataset.cardinality() == len(steps) == -(-(total // size) // 4)
    told = capfd.readouterr().err
    dropped = total % size
    assert (f"{dropped} of {total} records are dropped" in told) == (rank == 0 and dropped > 0)
    check_steps([step["number"].tolist() for step in steps], total, dropped)
    for step in steps:
        weights = np.where(step["number"] == 3, np.nan, step["number"] / 2)
        np.testing.assert_array_equal(step["weight"], weights)
        assert step["text"].tolist() == [b"t%d" % i for i in step["number"]]


# ---- datasets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [with_length, without_length])
@pytest.mark.parametrize(("total", "uneven"), [(12, "drop"), (23, "drop"), (7, "repeat")])
def test_datasets(make, total, uneven, rank, size):
    dataset = hvd.data.shard(make(total), 2, uneven=uneven)
    steps = [step.tolist() for step in as_numpy(dataset)]
    again = [step.tolist() for step in as_numpy(dataset)]
    assert steps == again
    all_steps = everyones(steps)
    assert len({len(theirs) for theirs in all_steps}) == 1
    seen = np.bincount(sum(map(flat, all_steps), []), minlength=total)
    if uneven == "repeat":
        assert seen.min() == 1 and seen.max() <= 2
    else:
        assert seen.max() == 1 and total - seen.sum() < 2 * size


@pytest.mark.parametrize("kind", ["shard", "equal_steps", "reshuffled"])
def test_shuffled_records_are_repeated_until_the_longest_has_ended(rank, size, kind):
    """TensorFlow fuses a shuffle with the repeat after it, for whatever else reads the shuffle."""
    total = 4 * size - 1
    if kind == "shard":
        dataset = hvd.data.shard(without_length(total), shuffle_buffer=5, uneven="repeat")
    else:
        share = hvd.data.shard(without_length(total), uneven="keep")
        share = share.shuffle(5, reshuffle_each_iteration=kind == "reshuffled")
        dataset = hvd.data.equal_steps(share, "repeat")
    for _ in range(2):
        seen = [int(number) for number in dataset.take(9)]
        assert len(seen) == 4
        assert set(seen) == set(range(rank, total, size))


def test_raise(rank, size):
    with pytest.raises(ValueError, match='uneven="raise"'):
        hvd.data.shard(with_length(2 * size + 1), uneven="raise")
    dataset = hvd.data.shard(without_length(2 * size + 1), uneven="raise")
    seen = []
    with pytest.raises(tf.errors.OpError, match='uneven="raise".* has only 2 batches'):
        for step in dataset:
            seen.append(int(step))
    assert len(seen) == 2


def test_infinite(rank, size):
    dataset = hvd.data.shard(tf.data.Dataset.range(10).repeat(), 5)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    assert next(iter(dataset)).numpy().tolist() == [(rank + i * size) % 10 for i in range(5)]


@pytest.mark.parametrize("uneven", ["drop", "repeat"])
@pytest.mark.parametrize("known", [True, False])
def test_equal_steps(known, uneven, rank, size):
    """Structures of all kinds come through. The ranks have 5, 7, 9, ... elements."""
    mine = 5 + 2 * rank
    ragged = tf.ragged.constant([[i] * (i % 3) for i in range(mine)], tf.int64)
    dataset = tf.data.Dataset.from_tensor_slices({"x": (np.arange(mine), ragged)})
    if not known:
        dataset = dataset.filter(lambda element: True)
    equal = hvd.data.equal_steps(dataset, uneven)
    same = dataset.map(lambda element: element)
    assert equal.element_spec in (dataset.element_spec, same.element_spec)
    got = [(int(step["x"][0]), step["x"][1].numpy().tolist()) for step in equal]
    want = 5 if uneven == "drop" else 5 + 2 * (size - 1)
    assert got == [(i % mine, [i % mine] * (i % mine % 3)) for i in range(want)]


class Pair(NamedTuple):
    x: tf.Tensor
    y: tf.Tensor


@pytest.mark.parametrize("make", [lambda i: Pair(i, -i), lambda i: (i,), lambda i: (Pair(i, -i),)])
def test_tuples_stay_what_they_are(make, rank, size):
    dataset = tf.data.Dataset.range(4 * size).map(make).filter(lambda *element: True)
    for equal in (hvd.data.equal_steps(dataset), hvd.data.shard(dataset)):
        assert equal.element_spec == dataset.element_spec
        assert type(next(iter(equal))) is type(make(0))


def test_a_rank_without_any(rank, size):
    dataset = tf.data.Dataset.range(5).filter(lambda x: rank > 0)
    with pytest.raises(tf.errors.OpError, match="rank 0 has no batch at all"):
        list(hvd.data.equal_steps(dataset))
    with pytest.raises(ValueError, match="would have no record"):
        hvd.data.shard(with_length(size - 1))
    with pytest.raises(tf.errors.OpError, match="has no batch at all"):
        list(hvd.data.shard(without_length(size - 1)))
    assert len(sum(everyones(as_numpy(hvd.data.shard(with_length(1), uneven="keep"))), [])) == 1


def test_two_agreements_that_would_block_are_refused(rank, size):
    """One rank needs more of the shard's steps for its next own one than another does."""
    total = 20 * size
    share = hvd.data.shard(without_length(total))
    changed = [
        ("a filter", share.filter(lambda x: rank > 0 or x > 15 * size)),
        ("a flat_map", share.flat_map(lambda x: tf.data.Dataset.range(x % 3)).batch(2)),
        ("an unbatch", share.batch(3).unbatch().prefetch(1)),
        ("a filter", share.filter(lambda x: True) if rank == 0 else share),
    ]
    for step, dataset in changed:
        with pytest.raises(ValueError, match=f'has {step} after hvd.data.shard .*"keep" there'):
            hvd.data.equal_steps(dataset)
    with pytest.raises(ValueError, match='has uneven="repeat" after'):
        hvd.data.equal_steps(share, "repeat")
    assert len(list(hvd.data.equal_steps(share.map(lambda x: x).batch(2)))) == 10
    kept = hvd.data.shard(without_length(total), uneven="keep")
    filtered = kept.filter(lambda x: rank > 0 or x > 15 * size)
    steps = everyones(len(list(hvd.data.equal_steps(filtered))))
    assert steps == [steps[0]] * size and 4 <= steps[0] <= 5


def test_two_loops_at_a_time(rank, size):
    dataset = hvd.data.equal_steps(tf.data.Dataset.range(4 + rank).filter(lambda x: x >= 0))
    first, second = iter(dataset), iter(dataset)
    assert [(int(a), int(b)) for a, b in zip(first, second)] == [(i, i) for i in range(4)]


def test_the_steps_of_a_process_set(rank, size):
    with pytest.raises(ValueError, match="not registered"):
        hvd.data.shard(with_length(5), process_set=hvd.ProcessSet([0]))
