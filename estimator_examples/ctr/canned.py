# SPDX-License-Identifier: Apache-2.0
"""The clicks through TensorFlow's own DNNLinearCombinedClassifier, as scaling.py times it.

It has a table of embeddings and a table of weights for each of the 26 features, and an optimizer
for each of its two parts.

In sessions TensorFlow makes one op of a lookup and the sum behind it, which reads the whole table.
An optimizer changes rows of the table in place, so TensorFlow copies it for each reader: here 64 MB
in every step. That is a part of its arithmetic optimization, so `session_config` turns it off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from layers import Sizes, numbers, rows_of
from rows import Features
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

v1 = tf.compat.v1

NAME = "canned"  # as the command line calls it


def by_feature(features: Features, labels: tf.Tensor, ids: int) -> tuple[Features, tf.Tensor]:
    """The rows of a table for each feature, int64 [n], and float32 "integers" [n, 13]."""
    found = {"integers": numbers(features["integers"])}
    for i, rows in enumerate(rows_of(ids)):
        found[_feature(i)] = features["categorical"][:, i] % rows
    return found, labels


def estimator(sizes: Sizes, optimizer: Callable[[], Any], config: Any) -> Any:
    """A tf.compat.v1.estimator.DNNLinearCombinedClassifier whose two optimizers are made alike."""
    column = tf.feature_column
    ids = [
        column.categorical_column_with_identity(_feature(i), rows)
        for i, rows in enumerate(rows_of(sizes.ids))
    ]
    deep = [column.embedding_column(one, sizes.dimension) for one in ids]
    return v1.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=ids,
        linear_optimizer=optimizer(),
        dnn_feature_columns=[*deep, column.numeric_column("integers", [13])],
        dnn_optimizer=optimizer(),
        dnn_hidden_units=list(sizes.hidden),
        dnn_activation_fn=getattr(tf.nn, sizes.activation),
        loss_reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
        config=config,
    )


def session_config(threads: dict[str, int]) -> v1.ConfigProto:
    """A session's configuration with these threads, in which lookups stay lookups."""
    config = v1.ConfigProto(**threads)
    config.graph_options.rewrite_options.arithmetic_optimization = RewriterConfig.OFF
    return config


def _feature(number: int) -> str:
    return f"feature_{number}"
