# SPDX-License-Identifier: Apache-2.0
"""Files of numbered records, what ranks read of them, and what `hvd.data.shard` refuses."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd


def write_tfrecords(folder, counts, rank):
    """Writes files of so many records. The i-th of all records is the number i and some padding."""
    number = 0
    for place, count in enumerate(counts):
        if rank == 0:
            with tf.io.TFRecordWriter(f"{folder}/part-{place:02}.tfrecord") as writer:
                for i in range(number, number + count):
                    writer.write(b"%05d" % i + b"." * 20)
        number += count
    hvd.broadcast_object(None, name="written")
    return f"{folder}/part-*.tfrecord"


def numbers(dataset):
    """The numbers of the records of each step."""
    return [[int(record[:5]) for record in np.atleast_1d(step)] for step in as_numpy(dataset)]


def as_numpy(dataset):
    return list(dataset.as_numpy_iterator())


def everyones(steps):
    return hvd.allgather_object(steps, name="everyones")


def flat(steps):
    return sorted(number for step in steps for number in step)


def check_steps(steps, total, dropped_at_most):
    """Checks equal numbers of steps, that no record comes twice, and how many are dropped."""
    all_steps = everyones(steps)
    assert len({len(theirs) for theirs in all_steps}) == 1
    seen = sorted(sum(map(flat, all_steps), []))
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(total))
    assert total - len(seen) <= dropped_at_most
    return seen


def refused(text, *args, **kwargs):
    with pytest.raises(ValueError, match=text):
        hvd.data.shard(*args, **kwargs)


def with_length(total):
    """The numbers below the total, as a dataset that knows how many they are."""
    return tf.data.Dataset.range(total)


def without_length(total):
    """The same numbers, as a dataset that does not."""
    return tf.data.Dataset.range(2 * total).filter(lambda x: x % 2 == 0).map(lambda x: x // 2)
