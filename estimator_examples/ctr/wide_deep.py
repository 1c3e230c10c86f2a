# SPDX-License-Identifier: Apache-2.0
"""Wide-and-deep: a weight for each id and each pair of ids, beside dense layers over embeddings.

H.-T. Cheng and others, "Wide & Deep Learning for Recommender Systems" (2016).
"""

from __future__ import annotations

import tensorflow as tf
from layers import Sizes, crosses, dense, embeddings, flat, numbers, weights
from rows import Features


def logits(features: Features, sizes: Sizes) -> tf.Tensor:
    """float32 [n]: the wide part and the deep one."""
    categorical = features["categorical"]
    wide = weights(categorical, sizes.ids) + crosses(categorical, sizes.cross_rows)
    return wide + deep(features, sizes)


def deep(features: Features, sizes: Sizes) -> tf.Tensor:
    """float32 [n]: the deep part. It is a model of its own, too."""
    embedded = embeddings(features["categorical"], sizes)
    return dense(tf.concat([flat(embedded), numbers(features["integers"])], axis=1), sizes)
