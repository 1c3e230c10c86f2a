# SPDX-License-Identifier: Apache-2.0
"""Passes without end: over what can be read once only, and over nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from shares import everyones, write_tfrecords

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3,)


def stream(most=None, repeat=False):
    """Records of a source that goes on where the reader before has left it."""
    source = itertools.count() if most is None else iter(range(most))
    records = tf.data.Dataset.from_generator(
        lambda: source, output_signature=tf.TensorSpec([], tf.int64)
    )
    return records.repeat() if repeat else records


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("shuffle_buffer", [None, 3])
def test_no_record_of_a_stream_is_lost_or_doubled(rank, size, repeat, shuffle_buffer):
    dataset = hvd.data.shard(stream(repeat=repeat), 4, epochs=None, shuffle_buffer=shuffle_buffer)
    taken = np.concatenate([batch.numpy() for batch in dataset.take(3)])
    assert all(number % size == rank for number in taken)
    assert len(set(taken.tolist())) == 12
    if shuffle_buffer is None:
        assert taken.tolist() == [size * i + rank for i in range(12)]


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_stream_that_ends_is_an_error(rank, size, batch_size):
    """And not one empty pass after the other, for ever. What it gave comes before."""
    dataset = iter(hvd.data.shard(stream(8 * size), batch_size, epochs=None))
    records = [next(dataset).numpy() for _ in range(8 if batch_size is None else 2)]
    assert np.ravel(records).tolist() == [size * i + rank for i in range(8)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {rank} has no record"):
        next(dataset)


@pytest.mark.parametrize("batch_size", [None, 1, 5])
@pytest.mark.parametrize("kind", ["filter", "files", "known"])
def test_small_data_goes_round(folder, rank, size, batch_size, kind):
    """Batches span passes. Each iteration begins anew."""
    source = tf.data.Dataset.range(size)
    if kind == "filter":
        source = source.filter(lambda number: True)
    elif kind == "files":
        source = write_tfrecords(folder, [1] * size, rank)
    dataset = hvd.data.shard(source, batch_size, epochs=None)
    for _ in range(2):
        counts = [np.size(one.numpy()) for one in dataset.take(7)]
        assert counts == [batch_size or 1] * 7


@pytest.mark.parametrize("uneven", ["drop", "repeat", "raise", "keep"])
def test_no_record_on_a_rank_is_an_error_on_all(rank, size, uneven):
    """And not one empty pass after the other, for ever, where the length is known."""
    source = tf.data.Dataset.range(size - 1)
    with pytest.raises(ValueError, match=f"rank {size - 1} would have no record"):
        hvd.data.shard(source, epochs=None, uneven=uneven)


def test_structures(rank, size):
    """Nested and sparse ones keep their shapes."""
    source = tf.data.Dataset.range(4 * size).filter(lambda number: True)
    source = source.map(
        lambda number: {
            "dense": (number, tf.fill([2], number)),
            "sparse": tf.sparse.from_dense(tf.fill([2], number + 1)),
        }
    )
    dataset = hvd.data.shard(source, 2, epochs=None, drop_remainder=True)
    first = next(iter(dataset))
    assert first["dense"][0].numpy().tolist() == [rank, rank + size]
    assert dataset.element_spec["dense"][1].shape.as_list() == [2, 2]
    assert tf.sparse.to_dense(first["sparse"]).numpy()[1].tolist() == [rank + size + 1] * 2


def test_in_a_graph(rank, size):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        source = tf.data.Dataset.range(4 * size).filter(lambda number: True)
        dataset = hvd.data.shard(source, 4, epochs=None)
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        session.run(iterator.initializer)
        expected = [size * i + rank for i in range(4)]
        assert [session.run(batch).tolist() for _ in range(3)] == [expected] * 3
        assert everyones(rank) == list(range(size))
