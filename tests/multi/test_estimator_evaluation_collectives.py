# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator.evaluate refuses models and hooks whose steps would wait for other ranks."""

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
    loss = tf.identity(loss, "loss")
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


def evaluate(hooks=(), **params):
    with tempfile.TemporaryDirectory() as directory:
        config = hvd.estimator.run_config(directory)
        estimator = tfe.Estimator(model_fn, config=config, params=params)
        return hvd.estimator.evaluate(
            estimator,
            lambda: tf.data.Dataset.from_tensor_slices(RECORDS).batch(2),
            hooks=hooks,
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


class Fetching(v1.train.SessionRunHook):
    """Asks for a collective in the steps, or runs it by itself, in every second one."""

    def __init__(self, by_itself):
        self.by_itself, self.runs = by_itself, 0

    def begin(self):
        self.sum = hvd.allreduce(tf.ones([]), name="of_a_hook", ignore_name_scope=True)

    def before_run(self, run_context):
        self.runs += 1
        is_due = self.runs % 2 == 0
        if is_due and self.by_itself:
            run_context.session.run(self.sum)
        return v1.train.SessionRunArgs(self.sum) if is_due and not self.by_itself else None


def average():
    return hvd.estimator.MetricAverageHook(["loss"], every_n_steps=1)


REFUSED = {
    "average": (average, "MetricAverageHook"),
    "fetched": (lambda: Fetching(False), "Fetching needs"),
    "run": (lambda: Fetching(True), "a hook needs"),
}


@pytest.mark.parametrize("kind", list(REFUSED))
@pytest.mark.parametrize("alone", [False, True])
def test_a_hook_with_a_collective_between_batches_is_refused_on_all(kind, alone):
    """Rank 0 has three batches, the other one two. Or rank 0 has all."""
    make, words = REFUSED[kind]
    arguments = {"changed": no_collective, "where": "update", "alone": alone}
    if hvd.size() == 1:
        assert evaluate([make()], **arguments)["mean"] == pytest.approx(4.5)
        return
    with pytest.raises((ValueError, RuntimeError), match=f"{words}.*would wait for") as caught:
        evaluate([make()], **arguments)
    assert isinstance(caught.value, RuntimeError) == (alone and hvd.rank() != 0)
    assert evaluate(**arguments)["mean"] == pytest.approx(4.5)  # the job lives


class AroundTheSteps(v1.train.SessionRunHook):
    """Adds up over the ranks before the first batch and after the last one."""

    found = None

    def begin(self):
        self.sum = hvd.allreduce(tf.ones([]), op=hvd.Sum, name="around", ignore_name_scope=True)

    def after_create_session(self, session, coord):
        self.found = [session.run(self.sum)]

    def after_run(self, run_context, run_values):
        session = run_context.session
        session.run(v1.train.get_global_step(session.graph))

    def end(self, session):
        self.found.append(session.run(self.sum))


def test_a_hook_may_reduce_before_and_after_the_batches():
    hook = AroundTheSteps()
    hooks = [hvd.BroadcastGlobalVariablesHook(0), hook]
    found = evaluate(hooks, changed=no_collective, where="update", alone=False)
    assert found["mean"] == pytest.approx(4.5)
    assert hook.found == [hvd.size()] * 2


def test_a_hook_that_needs_all_ranks_is_refused_where_rank_0_evaluates_alone():
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    arguments = {"changed": no_collective, "where": "update", "alone": True}
    if hvd.size() == 1:
        assert evaluate(hooks, **arguments)["mean"] == pytest.approx(4.5)
        return
    with pytest.raises((ValueError, RuntimeError), match="alone, but BroadcastGlobalVariablesHook"):
        evaluate(hooks, **arguments)
