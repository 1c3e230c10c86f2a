# SPDX-License-Identifier: Apache-2.0
"""Which metrics can be summed over ranks: the graph's answer, and whether the sums come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from cases import needs_estimator

import hvd_tf as hvd
from hvd_tf.estimator.metric_state import NotAdditiveError, state_of, states_of

RANKS = (1,)

v1 = tf.compat.v1
metrics = v1.metrics

# Each makes a metric of labels int64 [b], scores float32 [b] and weights float32 [b].
ADDITIVE: dict[str, Callable[..., Any]] = {
    "mean": lambda y, p, w: metrics.mean(p, w),
    "accuracy": lambda y, p, w: metrics.accuracy(y, p > 0.5, w),
    "precision": lambda y, p, w: metrics.precision(y, p > 0.5, w),
    "recall": lambda y, p, w: metrics.recall(y, p > 0.5, w),
    "auc": lambda y, p, w: metrics.auc(y, p, w),
    "auc_pr": lambda y, p, w: metrics.auc(
        y, p, w, curve="PR", summation_method="careful_interpolation"
    ),
    "true_positives": lambda y, p, w: metrics.true_positives(y, p > 0.5, w),
    "false_negatives": lambda y, p, w: metrics.false_negatives(y, p > 0.5, w),
    "precision_at_thresholds": lambda y, p, w: metrics.precision_at_thresholds(y, p, [0.3, 0.7], w),
    "sensitivity": lambda y, p, w: metrics.sensitivity_at_specificity(y, p, 0.5, w),
    "rmse": lambda y, p, w: metrics.root_mean_squared_error(tf.cast(y, tf.float32), p, w),
    "mean_absolute_error": lambda y, p, w: metrics.mean_absolute_error(
        tf.cast(y, tf.float32), p, w
    ),
    "mean_iou": lambda y, p, w: metrics.mean_iou(y, tf.cast(p > 0.5, tf.int64), 2, w),
    "per_class": lambda y, p, w: metrics.mean_per_class_accuracy(
        y, tf.cast(p > 0.5, tf.int64), 2, w
    ),
    "mean_tensor": lambda y, p, w: metrics.mean_tensor(
        tf.stack([tf.reduce_sum(p), tf.reduce_sum(w)])
    ),
    "percentage_below": lambda y, p, w: metrics.percentage_below(p, 0.4, w),
    "recall_at_k": lambda y, p, w: metrics.recall_at_k(
        y[:, None], tf.stack([p, 1 - p], 1), 1, weights=w
    ),
    "one from its own variables": lambda y, p, w: histogram(p),
    "a count that begins at 5": lambda y, p, w: counter(y, 5),
}


def local_variable(name: str, value: Any) -> tf.Variable:
    return v1.get_variable(
        name,
        initializer=value,
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES, v1.GraphKeys.METRIC_VARIABLES],
    )


def histogram(scores: tf.Tensor) -> Any:
    counts = local_variable("histogram", np.zeros(4, np.int32))
    added = v1.assign_add(counts, tf.histogram_fixed_width(scores, [0.0, 1.0], 4))
    return tf.reduce_max(counts), added


def counter(labels: tf.Tensor, begin: int) -> Any:
    count = local_variable("counter", np.int64(begin))
    return count.read_value(), v1.assign_add(count, tf.reduce_sum(labels)).op


def longest(scores: tf.Tensor) -> Any:
    largest = local_variable("largest", np.float32(0))
    return largest.read_value(), v1.assign(largest, tf.maximum(largest, tf.reduce_max(scores)))


def decaying(scores: tf.Tensor) -> Any:
    value = local_variable("decaying", np.float32(0))
    return value.read_value(), v1.assign_add(value, 0.1 * (tf.reduce_mean(scores) - value))


def hidden(scores: tf.Tensor) -> Any:
    value = local_variable("hidden", np.float32(0))
    update = tf.function(lambda: value.assign_add(tf.reduce_sum(scores)))
    return value.read_value(), update()


def of_the_model(scores: tf.Tensor) -> Any:
    weights = v1.get_variable("weights", initializer=np.float32(0))
    return weights.read_value(), v1.assign_add(weights, tf.reduce_sum(scores))


NOT_ADDITIVE: dict[str, tuple[Callable[..., Any], str]] = {
    "maximum": (lambda y, p, w: longest(p), "does not add to its variable 'largest': Assign"),
    "decaying mean": (lambda y, p, w: decaying(p), "depends on 'decaying', which it updates too"),
    "in a function": (lambda y, p, w: hidden(p), "does not add to its variable 'hidden': .*Call"),
    "no variable": (
        lambda y, p, w: (tf.reduce_sum(p), tf.no_op()),
        "not come from variables alone",
    ),
    "model's variable": (lambda y, p, w: of_the_model(p), "'weights', which is no local variable"),
    "running variance": (lambda y, p, w: running_variance(p), "depends on '(mean|count)', which"),
}


def running_variance(scores: tf.Tensor) -> Any:
    """As Welford's algorithm has it: what a batch adds depends on the mean so far."""
    count = local_variable("count", np.float32(0))
    mean = local_variable("mean", np.float32(0))
    spread = local_variable("spread", np.float32(0))
    size = tf.cast(tf.size(scores), tf.float32)
    delta = tf.reduce_mean(scores) - mean
    added = [
        v1.assign_add(spread, tf.reduce_sum((scores - mean) ** 2)),
        v1.assign_add(mean, delta * size / (count + size)),
        v1.assign_add(count, size),
    ]
    return spread / count, tf.group(*added)


def batches(count: int, seed: int = 1) -> list[tuple[np.ndarray, ...]]:
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(generator.integers(1, 9))
        labels = generator.integers(0, 2, size)
        found.append(
            (labels, generator.random(size, np.float32), generator.random(size, np.float32))
        )
    return found


def after(make: Callable[..., Any], some: list[tuple[np.ndarray, ...]], total: Any = None) -> Any:
    """Returns the state after some batches and the value, or the value of a given state."""
    with tf.Graph().as_default(), v1.Session() as session:
        dtypes = (np.int64, np.float32, np.float32)
        fed = [v1.placeholder(dtype, [None]) for dtype in dtypes]
        metric = make(*fed)
        variables = state_of(metric)
        session.run([v1.local_variables_initializer(), v1.global_variables_initializer()])
        begin = session.run(variables)
        for batch in some:
            session.run(metric[1], dict(zip(fed, batch)))
        if total is not None:
            for variable, value in zip(variables, total):
                variable.load(value, session)
        state = session.run(variables)
        return begin, state, session.run(metric[0])


@pytest.mark.parametrize("name", ADDITIVE)
@pytest.mark.parametrize("references", [False, True], ids=["resource", "reference"])
def test_states_of_shares_sum_to_the_state_of_all(name: str, references: bool) -> None:
    before = v1.resource_variables_enabled()
    (v1.disable_resource_variables if references else v1.enable_resource_variables)()
    try:
        every = batches(11)
        begin, expected_state, expected = after(ADDITIVE[name], every)
        shares = [after(ADDITIVE[name], every[rank::3])[1] for rank in range(3)]
        total = [
            sum(share[i].astype(np.float64) - first for share in shares) + first
            for i, first in enumerate(begin)
        ]
        for mine, its in zip(total, expected_state):
            np.testing.assert_allclose(mine, its, rtol=1e-6)
        typed = [np.asarray(mine, its.dtype) for mine, its in zip(total, expected_state)]
        np.testing.assert_allclose(after(ADDITIVE[name], [], typed)[2], expected, rtol=1e-6)
        assert expected_state, "a metric without state proves nothing"
    finally:
        (v1.enable_resource_variables if before else v1.disable_resource_variables)()


@pytest.mark.parametrize("name", NOT_ADDITIVE)
def test_what_cannot_be_summed_is_found(name: str) -> None:
    make, words = NOT_ADDITIVE[name]
    with tf.Graph().as_default(), pytest.raises(NotAdditiveError, match=words):
        state_of(make(tf.ones([3], tf.int64), v1.placeholder(tf.float32, [None]), tf.ones([3])))


@needs_estimator
@pytest.mark.skipif(
    not hasattr(tf.keras.metrics.Metric, "updates"),
    reason="Estimators take metrics of Keras 2: tf_keras, and TF_USE_LEGACY_KERAS=1",
)
@pytest.mark.parametrize("name", ["Mean", "AUC", "BinaryAccuracy"])
def test_keras_metrics_can_be_summed(name: str) -> None:
    hvd.estimator.provide_tf_estimator()
    with tf.Graph().as_default():
        labels, scores = v1.placeholder(tf.float32, [None]), v1.placeholder(tf.float32, [None])
        metric = getattr(tf.keras.metrics, name)()
        metric.update_state(*((scores,) if name == "Mean" else (labels, scores)))
        # Which makes the metric's variables local ones of the graph.
        spec = tf.estimator.EstimatorSpec(
            "eval", loss=tf.reduce_sum(scores), eval_metric_ops={"metric": metric}
        )
        found = state_of(spec.eval_metric_ops["metric"])
        assert sorted(v.name for v in found) == sorted(v.name for v in metric.variables)
        assert len(found) == (4 if name == "AUC" else 2)


def test_values_of_the_model_need_no_sum() -> None:
    with tf.Graph().as_default():
        step = v1.train.create_global_step()
        rate = v1.train.exponential_decay(0.1, step, 10, 0.5)
        assert state_of((rate, tf.no_op())) == []


def test_the_states_of_several_metrics_come_once_and_in_order() -> None:
    with tf.Graph().as_default():
        scores = v1.placeholder(tf.float32, [None])
        shared = metrics.mean(scores, name="shared")
        found, reasons = states_of({"b": shared, "a": shared, "worst": longest(scores)})
        assert [variable.name for variable in found] == ["shared/count:0", "shared/total:0"]
        assert list(reasons) == ["worst"]
