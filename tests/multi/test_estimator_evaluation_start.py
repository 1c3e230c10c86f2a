# SPDX-License-Identifier: Apache-2.0
"""What an evaluation's session begins with: a warm start's weights, the model's own Scaffold."""

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

RECORDS = 21
FEATURES = np.random.default_rng(2).standard_normal((RECORDS, 3)).astype(np.float32)
LABELS = FEATURES @ np.float32([[1.0], [-2.0], [0.5]])


def model_fn(features, labels, mode, params):
    weights = v1.get_variable("weights", [3, 1], initializer=v1.random_normal_initializer())
    error = labels - tf.matmul(features, weights)
    loss = tf.reduce_mean(error**2)
    metrics = {"error": v1.metrics.mean(error**2)} if mode == "eval" else None
    if metrics and params.get("largest"):  # rank 0 evaluates alone
        largest = v1.get_local_variable("largest", initializer=np.float32(0))
        update = v1.assign(largest, tf.maximum(largest, tf.reduce_max(error)))
        metrics["largest"] = largest.read_value(), update
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    given = params.get("local_init_op")
    scaffold = v1.train.Scaffold(local_init_op=given()) if given else None
    return tfe.EstimatorSpec(
        mode, loss=loss, train_op=train, eval_metric_ops=metrics, scaffold=scaffold
    )


def input_fn():
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(4)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as directory:
        yield directory


def plain(estimator):
    """What tf.estimator finds on rank 0, for all ranks."""
    results = estimator.evaluate(input_fn, name="plain") if hvd.rank() == 0 else None
    return hvd.broadcast_object(results, 0)


@pytest.mark.parametrize("largest", [False, True])
def test_weights_of_a_warm_start_count_as_long_as_there_is_no_checkpoint(folder, largest):
    """Its checkpoint is on rank 0 only. Each rank has a folder of its own."""
    config = tfe.RunConfig(tf_random_seed=7 + hvd.rank(), save_summary_steps=None)
    first = tfe.Estimator(model_fn, f"{folder}/first", config, {})
    if hvd.rank() == 0:
        first.train(input_fn, steps=3)
    second = tfe.Estimator(
        model_fn, f"{folder}/second", config, {"largest": largest}, warm_start_from=first.model_dir
    )
    found = hvd.estimator.evaluate(second, input_fn)
    assert found["error"] == pytest.approx(plain(first)["error"], rel=1e-6)
    assert found["error"] == pytest.approx(plain(second)["error"], rel=1e-6)
    assert found["global_step"] == 0


@pytest.mark.parametrize("largest", [False, True])
def test_local_variables_beside_a_local_init_op_of_the_model(folder, largest):
    """Those of the metrics are made after it."""
    params = {"local_init_op": v1.tables_initializer, "largest": largest}
    estimator = tfe.Estimator(model_fn, folder, params=params)
    if hvd.rank() == 0:
        estimator.train(input_fn, steps=3)
    found = hvd.estimator.evaluate(estimator, input_fn)
    assert found["error"] == pytest.approx(plain(estimator)["error"], rel=1e-6)
