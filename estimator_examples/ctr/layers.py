# SPDX-License-Identifier: Apache-2.0
"""What the models are made of: one table for the ids of all features, and dense layers.

Every lookup is a gather from a variable, so the gradients of tables are IndexedSlices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from generator import CARDINALITIES, CROSSES, LOG_MEAN, LOG_SPREAD, MISSING

v1 = tf.compat.v1
INITIAL = 0.01  # the largest element of an embedding at first


@dataclass(frozen=True)
class Sizes:
    """A model's sizes."""

    ids: int = 1_000_000
    """Rows of the table, for the ids of all features together."""
    dimension: int = 16
    """Numbers in a row of the table."""
    hidden: tuple[int, ...] = (256, 128)
    """Units of the dense layers."""
    cross_rows: int = 1 << 15
    """Rows of the wide part's table for each pair of features."""
    activation: str = "swish"
    """The dense layers' activation. Relu is cheaper. But where it has its kink, the rounding of a
    sum decides whether a record counts, and two runs that add in another order drift apart."""


def rows_of(ids: int, cardinalities: Sequence[int] = CARDINALITIES) -> list[int]:
    """How many rows each feature has of a table of about `ids` rows, and not more.

    A feature has a row for each of its ids, missing included. The largest ones have equally many:
    there several ids share a row.
    """
    wanted = np.array(cardinalities) + 1
    least, most = 1, int(wanted.max())
    while least < most:
        middle = (least + most + 1) // 2
        fits = np.minimum(wanted, middle).sum() <= ids
        least, most = (middle, most) if fits else (least, middle - 1)
    return np.minimum(wanted, least).tolist()


def folded(categorical: tf.Tensor, ids: int) -> tf.Tensor:
    """int64 [n, fields]: the row of each id in a table of `ids` rows."""
    rows = np.array(rows_of(ids), np.int64)
    starts = np.cumsum(rows) - rows
    return categorical % rows + starts


def weights(categorical: tf.Tensor, ids: int) -> tf.Tensor:
    """float32 [n]: the sum of a weight for each id."""
    table = v1.get_variable("weights", [ids, 1], initializer=tf.zeros_initializer())
    return tf.reduce_sum(tf.nn.embedding_lookup(table, folded(categorical, ids)), axis=[1, 2])


def crosses(categorical: tf.Tensor, rows: int) -> tf.Tensor:
    """float32 [n]: the sum of a weight for each pair of ids of some features."""
    one, other = ([pair[side] for pair in CROSSES] for side in (0, 1))
    mixed = tf.gather(categorical, one, axis=1) * 1000003 + tf.gather(categorical, other, axis=1)
    places = mixed % rows + np.arange(len(CROSSES), dtype=np.int64) * rows
    shape = [len(CROSSES) * rows, 1]
    table = v1.get_variable("crosses", shape, initializer=tf.zeros_initializer())
    return tf.reduce_sum(tf.nn.embedding_lookup(table, places), axis=[1, 2])


def embeddings(categorical: tf.Tensor, sizes: Sizes) -> tf.Tensor:
    """float32 [n, fields, dimension]."""
    table = v1.get_variable(
        "embeddings",
        [sizes.ids, sizes.dimension],
        initializer=v1.random_uniform_initializer(-INITIAL, INITIAL),
    )
    return tf.nn.embedding_lookup(table, folded(categorical, sizes.ids))


def numbers(integers: tf.Tensor) -> tf.Tensor:
    """float32 [n, 13]: logarithms with mean 0 and spread 1, and 0 where missing."""
    known = tf.cast(tf.maximum(integers, 0), tf.float32)
    scaled = (tf.math.log1p(known) - np.float32(LOG_MEAN)) / np.float32(LOG_SPREAD)
    return tf.where(tf.equal(integers, MISSING), tf.zeros_like(scaled), scaled)


def dense(layer: tf.Tensor, sizes: Sizes) -> tf.Tensor:
    """float32 [n]: through the dense layers, to one number."""
    for i, units in enumerate((*sizes.hidden, 1)):
        with v1.variable_scope(f"dense_{i}"):
            shape = [layer.shape[1], units]
            kernel = v1.get_variable("kernel", shape, initializer=v1.glorot_uniform_initializer())
            bias = v1.get_variable("bias", [units], initializer=tf.zeros_initializer())
            layer = tf.matmul(layer, kernel) + bias
            if i < len(sizes.hidden):
                layer = getattr(tf.nn, sizes.activation)(layer)
    return layer[:, 0]


def flat(embedded: tf.Tensor) -> tf.Tensor:
    """float32 [n, fields * dimension] from [n, fields, dimension]."""
    return tf.reshape(embedded, [-1, embedded.shape[1] * embedded.shape[2]])
