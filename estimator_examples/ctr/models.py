# SPDX-License-Identifier: Apache-2.0
"""The models as model_fns of an Estimator: what is trained and what is evaluated."""

from __future__ import annotations

from typing import Any

import deepfm
import tensorflow as tf
import wide_deep
from estimators import tf_estimator
from rows import Features

v1 = tf.compat.v1

LOGITS = {"deepfm": deepfm.logits, "wide_deep": wide_deep.logits, "deep": wide_deep.deep}
THRESHOLDS = 2000  # of the AUC's histogram

Params = dict[str, Any]


def model_fn(
    features: Features, labels: tf.Tensor, mode: str, params: Params
) -> tf_estimator.EstimatorSpec:
    """features, labels: as in rows.py.

    params: "model" is one of LOGITS; "sizes" are its Sizes; "optimizer" makes the optimizer.
    """
    logits = LOGITS[params["model"]](features, params["sizes"])
    probability = tf.sigmoid(logits)
    if mode == tf_estimator.ModeKeys.PREDICT:
        return tf_estimator.EstimatorSpec(mode, predictions={"click": probability})
    each = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(each, name="loss")
    if mode == tf_estimator.ModeKeys.TRAIN:
        train_op = params["optimizer"]().minimize(loss, global_step=v1.train.get_global_step())
        return tf_estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    planted = tf.sigmoid(features["logits"])
    return tf_estimator.EstimatorSpec(
        mode,
        loss=loss,
        eval_metric_ops={
            "auc": v1.metrics.auc(labels, probability, num_thresholds=THRESHOLDS),
            "ceiling": v1.metrics.auc(labels, planted, num_thresholds=THRESHOLDS),
            "log_loss": v1.metrics.mean(each),
        },
    )
