# SPDX-License-Identifier: Apache-2.0
"""DeepFM: a factorization machine and dense layers over the same embeddings.

H. Guo and others, "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction" (2017).
"""

from __future__ import annotations

import tensorflow as tf
from layers import INITIAL, Sizes, dense, embeddings, flat, numbers, weights
from rows import Features

v1 = tf.compat.v1


def pairs(vectors: tf.Tensor) -> tf.Tensor:
    """float32 [n]: the sum of the dot products of all pairs of vectors in [n, vectors, dimension].

    Half of the square of the sum less the sum of the squares: S. Rendle, "Factorization Machines"
    (2010), lemma 3.1.
    """
    square_of_sum = tf.square(tf.reduce_sum(vectors, axis=1))
    sum_of_squares = tf.reduce_sum(tf.square(vectors), axis=1)
    return 0.5 * tf.reduce_sum(square_of_sum - sum_of_squares, axis=1)


def logits(features: Features, sizes: Sizes) -> tf.Tensor:
    """float32 [n]: first order, pairs of features, and dense layers over all of them."""
    embedded = embeddings(features["categorical"], sizes)
    integers = numbers(features["integers"])
    count = integers.shape[1]
    slopes = v1.get_variable("slopes", [count, 1], initializer=tf.zeros_initializer())
    factors = v1.get_variable(
        "factors",
        [count, sizes.dimension],
        initializer=v1.random_uniform_initializer(-INITIAL, INITIAL),
    )
    # All records share these variables, and what they would have of them nearly cancels out.
    # So their gradients are summed in float64: in float32 the order of the records would show.
    exact = tf.cast(integers, tf.float64)
    scaled = exact[:, :, None] * tf.cast(factors, tf.float64)
    line = tf.matmul(exact, tf.cast(slopes, tf.float64))[:, 0]
    vectors = tf.concat([embedded, tf.cast(scaled, tf.float32)], axis=1)
    first_order = weights(features["categorical"], sizes.ids) + tf.cast(line, tf.float32)
    deep = dense(tf.concat([flat(embedded), integers], axis=1), sizes)
    return first_order + pairs(vectors) + deep
