# SPDX-License-Identifier: Apache-2.0
"""Passes without end over records that can be read once only, and the error where there are none.

TensorFlow would begin one empty pass after another for ever. To look for a first record would be to
read it, and a dataset that reads from a queue or a socket does not give it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import tensorflow as tf


def endless(
    records: Callable[[tf.Tensor], tf.data.Dataset],
    batched: Callable[[tf.data.Dataset], tf.data.Dataset],
    first_epoch: int,
    most_passes: int,
    message: str,
) -> tf.data.Dataset:
    """The batches of all passes from the first one on.

    Args:
      records: those of the epoch with that number, an int64 scalar.
      batched: makes batches of records, of one pass or of several.
      first_epoch: the number of the first pass.
      most_passes: that a batch may span, if each has a record.
      message: of the error where more passes give no batch.

    Raises:
      tf.errors.InvalidArgumentError: while iterating.
    """
    passes: dict[int, int] = {}  # of each iteration: those that have begun since its last batch
    iterations = itertools.count()

    def begin() -> np.int64:
        iteration = next(iterations)
        passes[iteration] = 0
        return np.int64(iteration)

    def may_begin(iteration: np.int64) -> np.bool_:
        passes[int(iteration)] += 1
        return np.bool_(passes[int(iteration)] <= most_passes)

    def given(iteration: np.int64) -> np.int64:
        passes[int(iteration)] = 0
        return iteration

    def batches(iteration: tf.Tensor) -> tf.data.Dataset:
        iteration = tf.ensure_shape(iteration, [])

        def of_pass(epoch: tf.Tensor) -> tf.data.Dataset:
            may = tf.numpy_function(may_begin, [iteration], tf.bool)
            with tf.control_dependencies([tf.debugging.Assert(may, [message])]):
                return records(tf.identity(epoch))

        last = np.iinfo(np.int64).max
        made = batched(tf.data.Dataset.range(first_epoch, last).flat_map(of_pass))
        # A batch is taken first, and then noted.
        notes = tf.data.Dataset.range(last).map(
            lambda _: tf.numpy_function(given, [iteration], tf.int64)
        )
        return tf.data.Dataset.zip((made, notes)).map(lambda batch, _: batch)

    number = tf.data.Dataset.from_tensors(0).map(lambda _: tf.numpy_function(begin, [], tf.int64))
    return number.flat_map(batches)
