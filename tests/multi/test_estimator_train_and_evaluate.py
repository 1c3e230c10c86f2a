# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator.train_and_evaluate: what rank 0 decides, all ranks do at the same step."""

from __future__ import annotations

import os
import tempfile
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd
from hvd_tf.estimator import saving

RANKS = (2,)
IN_FULL = (1, 3)
TIMEOUT_S = 400

try:
    hvd.estimator.provide_tf_estimator()
except ImportError:
    pass  # then the tests are skipped

v1 = tf.compat.v1
tfe = getattr(tf, "estimator", None)
pytestmark = pytest.mark.skipif(tfe is None, reason="tf.estimator is not there")

RECORDS = 90
FEATURES = np.random.default_rng(5).standard_normal((RECORDS, 3)).astype(np.float32)
LABELS = FEATURES @ np.float32([[1.0], [-2.0], [0.5]])


def model_fn(features, labels, mode):
    if mode == "infer":
        features = features["x"]
    weights = v1.get_variable("weights", [3, 1], initializer=v1.random_normal_initializer())
    predictions = tf.matmul(features, weights)
    if mode == "infer":
        return tfe.EstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.reduce_mean((predictions - labels) ** 2)
    if mode == "eval":
        metrics = {"error": v1.metrics.mean_squared_error(labels, predictions)}
        return tfe.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.05))
    train = optimizer.minimize(loss, v1.train.get_global_step())
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train)


def share(batches=None):
    """This rank's records of each global batch of 6."""
    everything = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).repeat()
    mine = everything.shard(hvd.size(), hvd.rank()).batch(6 // hvd.size())
    return mine if batches is None else mine.take(batches)


def held_out():
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(7)


class Evaluations(v1.train.SessionRunHook):
    """The global steps at which this rank evaluates."""

    def __init__(self):
        self.steps = []

    def after_create_session(self, session, coord):
        self.steps.append(int(session.run(v1.train.get_global_step())))


@pytest.fixture
def folder():
    """rank 0's model directory. The others have private ones."""
    with tempfile.TemporaryDirectory() as directory:
        yield directory


def run(
    folder,
    max_steps=10,
    save_steps=4,
    throttle_secs=0,
    batches=None,
    hooks=(),
    listeners=(),
    **more,
):
    evaluations = Evaluations()
    arguments = dict(more.pop("config", {"save_checkpoints_steps": save_steps}))
    config = hvd.estimator.run_config(folder, tf_random_seed=1, **arguments)
    estimator = tfe.Estimator(model_fn, config=config)
    outcome = hvd.estimator.train_and_evaluate(
        estimator,
        tfe.TrainSpec(
            lambda: share(batches), max_steps, list(hooks), saving_listeners=list(listeners)
        ),
        tfe.EvalSpec(
            held_out,
            steps=None,
            hooks=[evaluations],
            throttle_secs=throttle_secs,
            start_delay_secs=0,
            **more,
        ),
    )
    return estimator, evaluations.steps, outcome


def checkpoints(folder):
    return sorted(
        int(name.split("-")[1].split(".")[0])
        for name in os.listdir(folder)
        if name.startswith("model.ckpt") and name.endswith(".index")
    )


class Enough(v1.train.CheckpointSaverListener):
    """Ends the training at the first checkpoint from step 4 on."""

    def after_save(self, session, global_step_value):
        return global_step_value >= 4


def test_a_listener_of_rank_0_ends_the_training_of_all(folder):
    _, steps, (results, _) = run(folder, save_steps=4, listeners=[Enough()])
    assert steps == [4] and results["global_step"] == 4
    if hvd.rank() == 0:
        assert checkpoints(folder) == [0, 4]


def test_a_warm_start_needs_its_checkpoint_on_rank_0_only(folder):
    earlier, _, _ = run(folder, max_steps=3)
    weights = earlier.get_variable_value("weights") if hvd.rank() == 0 else None
    with tempfile.TemporaryDirectory() as other:
        config = hvd.estimator.run_config(other, tf_random_seed=2)
        # Elsewhere than on rank 0 this is a directory without a checkpoint.
        start = tfe.WarmStartSettings(earlier.model_dir)
        later = tfe.Estimator(model_fn, config=config, warm_start_from=start)
        started = Started()
        hvd.estimator.train_and_evaluate(
            later,
            tfe.TrainSpec(share, max_steps=2, hooks=[hvd.BroadcastGlobalVariablesHook(0), started]),
            tfe.EvalSpec(held_out, steps=1),
        )
    weights = hvd.broadcast_object(weights, 0)
    np.testing.assert_array_equal(started.weights, weights)


class Started(v1.train.SessionRunHook):
    """The weights that the training begins with."""

    def after_create_session(self, session, coord):
        (self.weights,) = session.run(v1.trainable_variables())


def test_saves_and_evaluations_come_at_the_steps_asked_for(folder):
    estimator, steps, (results, exported) = run(folder)
    assert steps == [4, 8, 10] and exported == []
    assert all(other == steps for other in hvd.allgather_object(steps))
    everyones = hvd.allgather_object(results)
    assert all(other == everyones[0] for other in everyones)
    if hvd.rank() == 0:
        assert checkpoints(folder) == [0, 4, 8, 10]
        plain = estimator.evaluate(held_out, name="plain")
        np.testing.assert_allclose(results["error"], plain["error"], rtol=1e-6)
        # As one process that sees the global batches.
        weights = tf.train.load_variable(tf.train.latest_checkpoint(folder), "weights")
        np.testing.assert_allclose(weights, expected_weights(folder), rtol=1e-5, atol=1e-6)
    else:
        assert tf.train.latest_checkpoint(estimator.model_dir) is None


def expected_weights(folder):
    """Ten steps of gradient descent by NumPy, from the first checkpoint."""
    weights = tf.train.load_variable(os.path.join(folder, "model.ckpt-0"), "weights")
    for step in range(10):
        which = np.arange(6 * step, 6 * step + 6) % RECORDS
        x, y = FEATURES[which], LABELS[which]
        weights = weights - 0.05 * 2 / 6 * x.T @ (x @ weights - y)
    return weights


def test_rank_0s_clock_decides(folder):
    class Slow(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            time.sleep(0.05 * (1 + hvd.rank()))

    _, steps, _ = run(folder, 30, hooks=[Slow()], config={"save_checkpoints_secs": 1})
    assert steps[-1] == 30 and len(steps) >= 2
    assert all(other == steps for other in hvd.allgather_object(steps))


def test_throttled_evaluations_are_fewer_than_checkpoints(folder):
    _, steps, _ = run(folder, save_steps=2, throttle_secs=600)
    assert steps == [2, 10]
    if hvd.rank() == 0:
        assert checkpoints(folder) == [2, 4, 6, 8, 10]  # the first of six is gone


def test_ranks_that_run_out_of_data_end_together(folder):
    _, steps, (results, _) = run(folder, None, batches=5 + 2 * hvd.rank())
    assert steps == [4, 5] and results["global_step"] == 5


def uneven_weights(folder, counts):
    """Gradient descent by NumPy over all batches, from the first checkpoint."""
    weights = tf.train.load_variable(os.path.join(folder, "model.ckpt-0"), "weights")
    mine = 6 // hvd.size()
    for step in range(max(counts)):
        total = 0.0
        for rank in [rank for rank, count in enumerate(counts) if step < count]:
            which = (np.arange(mine * step, mine * step + mine) * hvd.size() + rank) % RECORDS
            x, y = FEATURES[which], LABELS[which]
            total = total + 2 / mine * x.T @ (x @ weights - y)
        weights = weights - 0.05 * total / hvd.size()
    return weights


@pytest.mark.parametrize("first", [True, False])
def test_with_the_last_rank_no_batch_is_lost(folder, first):
    """Rank 0 ends first or last. Ranks that wait take part in evaluations."""
    counts = [3 + 3 * rank if first else 9 - 3 * rank for rank in range(hvd.size())]
    hooks = [hvd.estimator.EndTogetherHook(when="last")]
    _, steps, (results, _) = run(folder, None, batches=counts[hvd.rank()], hooks=hooks)
    # Without rank 0 nothing is saved on the way.
    expected = [step for step in (4, 8) if step <= counts[0]] + [max(counts)]
    assert steps == expected and results["global_step"] == max(counts)
    assert all(other == results for other in hvd.allgather_object(results))
    if hvd.rank() == 0:
        weights = tf.train.load_variable(tf.train.latest_checkpoint(folder), "weights")
        expected_weights = uneven_weights(folder, counts)
        np.testing.assert_allclose(weights, expected_weights, rtol=1e-5, atol=1e-6)
        error = np.mean((FEATURES @ expected_weights - LABELS) ** 2)
        np.testing.assert_allclose(results["error"], error, rtol=1e-4)


def test_a_hook_that_stops_rank_0_stops_all(folder):
    class Stop(v1.train.SessionRunHook):
        def before_run(self, run_context):
            return v1.train.SessionRunArgs(v1.train.get_global_step())

        def after_run(self, run_context, run_values):
            if hvd.rank() == 0 and run_values.results >= 6:
                run_context.request_stop()

    _, steps, (results, _) = run(folder, 100, hooks=[Stop()])
    assert results["global_step"] < 10
    assert all(other == steps for other in hvd.allgather_object(steps))


def test_goes_on_from_the_checkpoint_and_knows_when_it_is_done(folder):
    run(folder, 5, save_steps=100)
    _, steps, (results, _) = run(folder, 9, save_steps=100)
    assert steps == [9] and results["global_step"] == 9
    _, steps, outcome = run(folder, 9)
    assert steps == [] and outcome == (None, [])


def test_exporters_run_on_rank_0_and_all_learn_where(folder):
    def receiver():
        given = {"x": v1.placeholder(tf.float32, [None, 3])}
        return tfe.export.ServingInputReceiver(given, given)

    exporters = [
        tfe.LatestExporter("latest", receiver),
        tfe.FinalExporter("final", receiver),
        tfe.BestExporter("best", receiver),
    ]
    estimator, _, (_, exported) = run(folder, exporters=exporters)
    assert len(exported) == 3 and exported == hvd.broadcast_object(exported, 0)
    assert os.path.isdir(os.path.join(estimator.model_dir, "export")) == (hvd.rank() == 0)
    if hvd.rank() == 0:
        assert all(os.path.isfile(os.path.join(path, b"saved_model.pb")) for path in exported[:2])


def test_early_stopping_and_best_export_count_on_all_ranks(folder):
    """As tf.estimator has them: the error rises from the second evaluation on."""
    config = hvd.estimator.run_config(folder, tf_random_seed=1, save_checkpoints_steps=2)
    estimator = tfe.Estimator(model_fn, config=config)
    evaluations = Evaluations()

    def worse_and_worse():
        labels = LABELS + 10.0 * len(evaluations.steps)
        return tf.data.Dataset.from_tensor_slices((FEATURES, labels)).batch(7)

    def receiver():
        given = {"x": v1.placeholder(tf.float32, [None, 3])}
        return tfe.export.ServingInputReceiver(given, given)

    stop = tfe.experimental.stop_if_no_decrease_hook(
        estimator, "error", max_steps_without_decrease=4, run_every_secs=None, run_every_steps=1
    )
    hvd.estimator.train_and_evaluate(
        estimator,
        tfe.TrainSpec(share, max_steps=100, hooks=[stop]),
        tfe.EvalSpec(
            worse_and_worse,
            steps=None,
            hooks=[evaluations],
            exporters=tfe.BestExporter("best", receiver),
            throttle_secs=0,
        ),
    )
    # 2 is the best; 6 is the first evaluation without a decrease for 4 steps.
    assert 6 in evaluations.steps and evaluations.steps[-1] <= 8
    assert all(other == evaluations.steps for other in hvd.allgather_object(evaluations.steps))
    best = None
    if hvd.rank() == 0:
        (export,) = os.scandir(os.path.join(folder, "export", "best"))
        best = os.path.join(export.path, "variables", "variables")
    found = hvd.estimator.evaluate(estimator, held_out, checkpoint_path=best)
    assert found["global_step"] == 2
    assert all(other == found for other in hvd.allgather_object(found))


def test_a_failing_export_is_an_error_on_all(folder):
    class Broken(tfe.Exporter if tfe else object):
        name = "broken"

        def export(self, *_):
            raise OSError("disk full")

    own = hvd.rank() == 0
    with pytest.raises(OSError if own else RuntimeError, match="disk full"):
        run(folder, exporters=[Broken()])


def test_specs_that_differ_are_an_error_on_all(folder):
    if hvd.size() > 1:
        with pytest.raises(
            ValueError, match="train_spec.max_steps differs: 7 on rank 0, 8 on rank 1"
        ):
            run(folder, 7 + hvd.rank())
    estimator = tfe.Estimator(model_fn, config=hvd.estimator.run_config(folder))
    with pytest.raises(TypeError, match="eval_spec must be a tf.estimator.EvalSpec"):
        hvd.estimator.train_and_evaluate(estimator, tfe.TrainSpec(share), None)
    mine = None if hvd.rank() == hvd.size() - 1 else tfe.EvalSpec(share)
    with pytest.raises((TypeError, ValueError), match="eval_spec must be.*Received: None"):
        hvd.estimator.train_and_evaluate(estimator, tfe.TrainSpec(share), mine)


@pytest.mark.parametrize("by", ["steps", "seconds"])
def test_when_rank_0_saves_and_evaluates(monkeypatch, by):
    """Every 2 steps, or every 2 seconds of one step each, and evaluations 5 seconds apart."""
    clock_s = 0.0
    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: clock_s))
    steps, seconds = (2, None) if by == "steps" else (None, 2)
    config = SimpleNamespace(save_checkpoints_steps=steps, save_checkpoints_secs=seconds)
    schedule = saving.Schedule(config, throttle_s=5)
    schedule.started(7)
    found = []
    for step in range(8, 18):
        clock_s += 1.0
        found.append(schedule.after_step(step))
    both = saving.SAVE | saving.EVALUATE
    assert found == [0, both, 0, saving.SAVE, 0, saving.SAVE, 0, both, 0, saving.SAVE]
