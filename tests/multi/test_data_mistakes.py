# SPDX-License-Identifier: Apache-2.0
"""What `hvd.data.shard` refuses or warns of: shares of shares, random orders, different calls."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from shares import everyones, refused, with_length

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3,)

v1 = tf.compat.v1


def test_sharding_twice(rank, size):
    shared = hvd.data.shard(with_length(12))
    refused("sharded already, by hvd.data.shard", shared.map(lambda x: x + 1).batch(2))
    refused("sharded already, by Dataset.shard", with_length(12).shard(size, rank).prefetch(1))
    both = tf.data.Dataset.zip((with_length(12), with_length(12).shard(size, rank)))
    refused("sharded already, by Dataset.shard", both)
    old = v1.data.Dataset.range(12).shard(size, rank).batch(2)
    refused("sharded already, by Dataset.shard", old)
    refused("sharded already, by Dataset.shard", with_length(12).shard(size + 1, rank))


def test_a_part_of_the_records_is_no_share(rank, size):
    """As that which is kept for training, on all ranks alike."""
    for parts in (10, size):  # also where the numbers are those of one rank
        for index in range(parts - 2, parts):
            dataset = hvd.data.shard(with_length(60).shard(parts, index), uneven="keep")
            seen = sorted(sum(everyones([int(x) for x in dataset]), []))
            assert seen == list(range(index, 60, parts))


def random_orders(**seed):
    """Datasets of 12 numbers whose order is drawn."""
    two = [with_length(6), with_length(6).map(lambda x: x + 6)]
    yield with_length(12).shuffle(5, **seed)
    yield tf.data.Dataset.sample_from_datasets(two, [0.5, 0.5], **seed)
    yield with_length(12).apply(tf.data.experimental.shuffle_and_repeat(5, 1, **seed))
    yield v1.data.Dataset.range(12).shuffle(5, **seed).map(lambda x: x).batch(1).unbatch()


@pytest.mark.parametrize("in_graph", [False, True])
def test_an_interleave_in_any_order_is_refused(in_graph):
    def interleaved(**order):
        names = tf.data.Dataset.range(3)
        return names.interleave(lambda n: tf.data.Dataset.range(4), num_parallel_calls=2, **order)

    with tf.Graph().as_default() if in_graph else contextlib.nullcontext():
        for split in hvd.data.shard, lambda d: hvd.data.shard(d.batch(2).prefetch(1)):
            with pytest.raises(
                ValueError, match="ParallelInterleaveDataset with deterministic=Fal"
            ):
                split(interleaved(deterministic=False))
        hvd.data.shard(interleaved())
        hvd.data.shard(interleaved(deterministic=True).map(lambda n: n))


def test_random_orders_before_the_split(rank, size):
    for unseeded in random_orders():
        refused("without a seed: every rank would split", unseeded)
    for seeded in random_orders(seed=3):
        dataset = hvd.data.shard(seeded, uneven="keep")
        assert sorted(sum(everyones([int(x) for x in dataset]), [])) == list(range(12))
    for other in random_orders(seed=3 + rank):
        refused("the seeds of a shuffle .*differs", other)


def test_orders_that_change_go_with_no_repetition(rank, size):
    uneven = with_length(12 * size + 1)
    refused("another order each time", uneven.shuffle(50, seed=1), uneven="repeat")
    kept = uneven.shuffle(50, seed=1, reshuffle_each_iteration=False)
    for _ in range(3):
        seen = [int(x) for x in hvd.data.shard(kept, uneven="repeat", epochs=2)]
        assert set(sum(everyones(seen), [])) == set(range(12 * size + 1))
    even = with_length(12 * size).shuffle(50, seed=1)
    seen = [int(x) for x in hvd.data.shard(even, uneven="repeat")]
    assert sorted(sum(everyones(seen), [])) == list(range(12 * size))


def test_orders_that_change_are_warned_of(rank, size, capfd):
    """A look on one rank alone moves them on. No other order suffers from it."""
    two = [with_length(6), with_length(6)]
    choice = {"seed": 3, "rerandomize_each_iteration": True}
    for changing in (
        with_length(12).shuffle(5, seed=3).map(lambda x: x),
        with_length(12).apply(tf.data.experimental.shuffle_and_repeat(5, 1, seed=3)),
        tf.data.Dataset.sample_from_datasets(two, [0.5, 0.5], **choice),
    ):
        hvd.data.shard(changing)
        assert ("order changes with each iterator" in capfd.readouterr().err) == (rank == 0)
    kept = with_length(12).shuffle(12, seed=3, reshuffle_each_iteration=False)
    if rank == 0:
        next(iter(kept))
    seen = [int(x) for x in hvd.data.shard(kept)]
    assert sorted(sum(everyones(seen), [])) == list(range(12))
    assert "order changes" not in capfd.readouterr().err


def test_shuffles_before_the_split(rank, size):
    refused("a shuffle without a seed", with_length(12).shuffle(5))
    dataset = hvd.data.shard(with_length(12).shuffle(5, seed=3))
    assert sorted(sum(everyones([int(x) for x in dataset]), [])) == list(range(12))
    refused("the seeds of a shuffle .*differs", with_length(12).shuffle(5, seed=3 + rank))


def test_shuffles_before_the_split_in_a_graph(rank, size):
    """As in an input_fn. Its graph's seed, which run_config makes differ by rank, counts too."""
    with tf.Graph().as_default():
        refused("a shuffle without a seed", with_length(12).shuffle(5))
        v1.set_random_seed(7 + rank)
        for seed in (None, 3):
            refused("the seeds of a shuffle .*differs", with_length(12).shuffle(5, seed=seed))
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(7)
        source = with_length(12).shuffle(5)
        look = v1.data.make_one_shot_iterator(source).get_next()
        if rank == 0:  # it does not move the order on
            session.run(look)
        dataset = hvd.data.shard(source)
        number = v1.data.make_one_shot_iterator(dataset).get_next()
        seen = [int(session.run(number)) for _ in range(12 // size)]
    assert sorted(sum(everyones(seen), [])) == list(range(12))


def test_ranks_that_ask_for_different_things(rank, size):
    refused("what was asked for differs", with_length(12), 2 + rank)
    refused("uneven= differs", with_length(12), uneven="drop" if rank else "repeat")
    refused("the length of the dataset differs", with_length(12 + rank))
    refused("batch_size=0", with_length(12), 0)
    refused("batch_size=True: pass a number", with_length(12), True)
    refused("uneven='pad'", with_length(12), uneven="pad")

    @tf.function
    def traced():
        return hvd.data.shard(with_length(12)).reduce(np.int64(0), lambda a, b: a + b)

    with pytest.raises(RuntimeError, match="cannot be a part of a tf.function"):
        traced()


@pytest.mark.parametrize("kept", [0, 1])
def test_ranks_that_ask_for_different_ends(rank, size, kept):
    """Also where one asks for nothing."""
    uneven = "keep" if rank == kept else "drop"
    with pytest.raises(ValueError, match="uneven= differs"):
        hvd.data.equal_steps(with_length(12), uneven=uneven)
