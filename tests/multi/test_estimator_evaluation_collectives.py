# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator.evaluate refuses models whose steps would wait for other ranks."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from cases import needs_estimator

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (1,)
TIMEOUT_S = 120

v1 = tf.compat.v1
tfe = hvd.estimator.tf_estimator
pytestmark = needs_estimator

RECORDS = np.arange(10, dtype=np.float32)  # five batches, no multiple of the ranks


def allgathered(x):
    return hvd.allgather(x)


def called(x):
    inner = tf.function(lambda x: tf.cond(x[0] >= 0, lambda: hvd.allgather(x), lambda: x))
    return tf.function(lambda x: inner(x) + 0.0)(x)


def in_a_loop(x):
    return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, hvd.allreduce(x)), [0, x])[1]


def awaited(x):
    with tf.control_dependencies([hvd.allreduce(tf.reduce_sum(x))]):
        return tf.identity(x)


def no_collective(x):
    return x + tf.cast(hvd.rank_op() - hvd.rank_op() + hvd.size_op() - hvd.size(), tf.float32)


def model_fn(features, labels, mode, params):
    del labels
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    given = params["changed"](features)  # of no effect where nothing uses it
    loss = tf.reduce_mean(given if params["where"] == "loss" else features) + weight
    value, update = v1.metrics.mean(given if params["where"] == "update" else features)
    if params["where"] == "value":
        value = params["changed"](value[None])[0]
    metrics = {"mean": (value, update)}
    if params["alone"]:
        largest = v1.get_local_variable("largest", initializer=np.float32(0))
        metrics["largest"] = largest.read_value(), v1.assign(largest, tf.reduce_max(features))
    # A part of the graph that an evaluation does not run.
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
    train = optimizer.minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops=metrics)


def evaluate(**params):
    with tempfile.TemporaryDirectory() as directory:
        config = hvd.estimator.run_config(directory)
        estimator = tfe.Estimator(model_fn, config=config, params=params)
        return hvd.estimator.evaluate(
            estimator,
            lambda: tf.data.Dataset.from_tensor_slices(RECORDS).batch(2),
        )


@pytest.mark.parametrize(
    ("changed", "where", "kind"),
    [
        (allgathered, "loss", "Allgather"),
        (allgathered, "update", "Allgather"),
        (allgathered, "value", "Allgather"),
        (called, "update", "Allgather"),
        (in_a_loop, "loss", "Allreduce"),
        (awaited, "update", "Allreduce"),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_a_collective_in_the_steps_is_refused_on_all(changed, where, kind, alone):
    if hvd.size() == 1:
        assert evaluate(changed=changed, where=where, alone=alone)["mean"] == pytest.approx(4.5)
        return
    with pytest.raises(ValueError, match=f"Horovod{kind} '.*build no collectives in mode EVAL"):
        evaluate(changed=changed, where=where, alone=alone)


def test_other_operations_and_collectives_of_the_training_are_not():
    found = evaluate(changed=no_collective, where="update", alone=False)
    assert found["mean"] == pytest.approx(4.5)
