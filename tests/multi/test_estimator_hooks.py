# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator's hooks: averaged metrics, a learning rate by step, and ends in step."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from one_weight import (
    RATE,
    AtEnd,
    estimator_and_input,
    outcome,
    stop_at,
    training,
    training_in_epochs,
    training_with_checkpoint,
)

import hvd_tf

RANKS = (2,)
IN_FULL = (1, 3)

v1 = tf.compat.v1
train = v1.train
toolkit = hvd_tf.estimator


def batches_of(rank):
    """How many batches a rank has: rank 1 the fewest."""
    return 4 + 3 * abs(rank - 1)


def weights_by_step(steps, size, rates=None):
    """The weight before the first step and after each, computed in one process."""
    weights = [0.0]
    for step in range(steps):
        gradients = [2 * (weights[-1] - (step + rank)) for rank in range(size)]
        rate = RATE if rates is None else rates[step]
        weights.append(weights[-1] - rate * np.mean(gradients))
    return weights


# ---- MetricAverageHook -------------------------------------------------------------------------


def test_averages_are_those_of_all_ranks(rank, size):
    lines = []
    seen = []

    def step_fn(session, update):
        session.run(update)
        seen.append(dict(hook.averages))

    with tf.Graph().as_default():
        target = tf.data.Dataset.range(9).map(lambda i: tf.cast(i + rank, tf.float32))
        target = v1.data.make_one_shot_iterator(target).get_next()
        tf.identity(target * 2, "double")
        tf.cast(target + 1, tf.int32, name="whole")
        hook = toolkit.MetricAverageHook(
            {"twice": "double", "more": "whole:0"}, every_n_steps=3, log=lines.append
        )
        train.get_or_create_global_step()
        step = v1.assign_add(train.get_global_step(), 1)
        broadcast = hvd_tf.BroadcastGlobalVariablesHook(0)
        with train.MonitoredTrainingSession(hooks=[broadcast, hook]) as session:
            for _ in range(7):
                step_fn(session, [step.op, target])
    middle = (size - 1) / 2  # the mean of the ranks
    want = [{"more": i + middle + 1, "twice": 2 * (i + middle)} for i in (0, 0, 0, 3, 3, 3, 6)]
    for got, expected in zip(seen, want):
        assert got == pytest.approx(expected, rel=1e-15)
    assert len(lines) == (3 if rank == 0 else 0)
    if rank == 0:
        assert lines[1].startswith(f"averages over the ranks: more = {4 + middle:g}, twice = ")


def test_averages_in_training_and_in_a_second_training(rank, size):
    hook = toolkit.MetricAverageHook(["loss"], every_n_steps=2)
    for steps in (3, 5):
        training([hook, stop_at(steps)])
        before = weights_by_step(steps, size)[steps - 1]
        mean = np.mean([(before - (steps - 1 + peer)) ** 2 for peer in range(size)])
        np.testing.assert_allclose(hook.averages["loss"], mean, rtol=1e-12)


def test_a_hook_that_differs_is_named_on_every_rank(rank, size):
    if size == 1:
        pytest.skip("needs ranks")
    everywhere = toolkit.MetricAverageHook(["loss"], every_n_steps=2)
    on_one = toolkit.MetricAverageHook(["loss"], every_n_steps=3)
    found = outcome(training, [on_one if rank == 1 else everywhere, stop_at(2)])
    assert isinstance(found, ValueError)
    text = str(found)
    assert "the hooks differ from those of rank 0" in text and "rank 2:" not in text
    assert "rank 1: has MetricAverageHook(loss; every 3 steps), lacks Metric" in text
    found = outcome(training, [*([] if rank == 0 else [toolkit.EndTogetherHook()]), stop_at(2)])
    assert isinstance(found, ValueError) and "rank 1: has EndTogetherHook" in str(found)
    assert outcome(training, [stop_at(2)])[0] == 2  # the job lives


def test_metric_averages_refuse():
    for wrong in ([], {}, "loss"):
        with pytest.raises(ValueError, match="tensors must be a list of tensor names"):
            toolkit.MetricAverageHook(wrong)
    with pytest.raises(ValueError, match="every_n_steps must be 1 or more"):
        toolkit.MetricAverageHook(["loss"], every_n_steps=0)
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="no tensor 'nothing:0': give it that name"):
            toolkit.MetricAverageHook(["nothing"]).begin()
        with pytest.raises(ValueError, match=r"many must be a scalar.* has shape \(3,\)"):
            toolkit.MetricAverageHook({"many": tf.constant([1.0, 2.0, 3.0])}).begin()


# ---- LearningRateHook --------------------------------------------------------------------------


def test_learning_rate_of_the_step(rank, size):
    def rate():
        return v1.get_variable("rate", initializer=np.float64(7.0), trainable=False)

    asked = []

    def schedule(step):
        asked.append(step)
        return toolkit.warm_up(0.2, 4, step)

    step, weight = training([toolkit.LearningRateHook("rate", schedule), stop_at(7)], rate=rate)
    rates = [0.2 * (1 + min(i / 4, 1) * (size - 1)) / size for i in range(7)]
    assert step == 7 and asked == list(range(7))
    np.testing.assert_allclose(weight, weights_by_step(7, size, rates)[-1], rtol=1e-12)


def test_a_rate_is_set_anew_in_a_second_session(size):
    """There the variable has its first value again, whatever the hook has assigned before."""
    hook = toolkit.LearningRateHook("rate", lambda step: 0.1)

    def rate():
        return v1.get_variable("rate", initializer=np.float64(7.0), trainable=False)

    found = [training([hook, stop_at(3)], rate=rate)[1] for _ in range(2)]
    np.testing.assert_allclose(found, [weights_by_step(3, size, [0.1] * 3)[-1]] * 2, rtol=1e-12)


def test_a_rate_that_is_an_int_is_a_float(size):
    step = tf.constant(5)
    warmed = toolkit.warm_up(1, 10, step)
    assert warmed.dtype == tf.float32
    assert float(warmed) == pytest.approx((1 + 0.5 * (size - 1)) / size)
    assert float(toolkit.piecewise(1, [(0, 1.0), (3, 0.1)], step)) == pytest.approx(0.1)


def test_learning_rate_hook_refuses():
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="no variable 'rate': make it in the model_fn"):
            toolkit.LearningRateHook("rate", float).begin()
        variable = v1.get_variable("rate", initializer=0.5, trainable=False)
        with pytest.raises(ValueError, match="no global step"):
            toolkit.LearningRateHook(variable, float).begin()


# ---- EndTogetherHook ---------------------------------------------------------------------------


def fewest(size):
    return min(batches_of(rank) for rank in range(size))


def test_all_end_with_the_first_that_has_no_more_data(rank, size, tmp_path):
    """Twice with one hook, and rank 0's last checkpoint holds what all ranks have."""
    hook = toolkit.EndTogetherHook()
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        step, weight = training_with_checkpoint([hook], batches_of(rank), folder)
        assert step == fewest(size)
        np.testing.assert_allclose(weight, weights_by_step(step, size)[-1], rtol=1e-12)
        assert len({w.tobytes() for w in hvd_tf.allgather_object(weight)}) == 1


def test_a_rank_without_any_data(rank, size):
    found = training([toolkit.EndTogetherHook()], 0 if rank == size - 1 else 5)
    assert found[0] == 0 and found[1] == 0.0


def test_a_rank_whose_input_ends_outside_of_the_session(rank, size):
    """A generator that is fed: StopIteration, and the loop's own last step."""
    left = iter(range(3 if rank == 0 else 6))

    def step_fn(session, update):
        next(left)
        session.run(update)

    assert training([toolkit.EndTogetherHook()], step_fn=step_fn)[0] == 3
    hooks = [toolkit.EndTogetherHook(), stop_at(4 if rank == size - 1 else 8)]
    assert training(hooks)[0] == 4


def test_equal_ends_as_without_the_hook(size):
    step, weight = training([toolkit.EndTogetherHook(), stop_at(5)])
    assert step == 5
    np.testing.assert_allclose(weight, weights_by_step(5, size)[-1], rtol=1e-12)


def test_epochs_of_a_program_that_reads_its_data_again(rank, size):
    step, got = training_in_epochs(toolkit.EndTogetherHook(), batches_of(rank), 3)
    want = 0.0
    for number in [*range(fewest(size))] * 3:
        want -= RATE * np.mean([2 * (want - number - peer) for peer in range(size)])
    assert step == 3 * fewest(size)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_an_error_stays_an_error_on_every_rank(rank, size):
    """And the job lives, with the same hook."""
    hook = toolkit.EndTogetherHook()

    def step_fn(session, update):
        step_fn.runs += 1
        bad = rank == 0 and step_fn.runs == 3
        session.run([update, step_fn.check], {step_fn.value: np.nan if bad else 1.0})

    class Check(train.SessionRunHook):
        def begin(self):
            step_fn.value = v1.placeholder(tf.float32, [])
            step_fn.check = v1.check_numerics(step_fn.value, "not a number")

    for _ in range(2):
        step_fn.runs = 0
        found = outcome(training, [hook, Check(), stop_at(6)], step_fn=step_fn)
        if rank == 0:
            assert isinstance(found, tf.errors.InvalidArgumentError) and "not a number" in str(
                found
            )
        else:
            assert isinstance(found, tf.errors.UnknownError) and "rank 0" in str(found)
    assert outcome(training, [hook], batches_of(rank))[0] == fewest(size)


def test_accumulation_ends_together(rank):
    """Ranks notice the end at their next reduction. No update is lost or done in part."""

    def accumulating(hooks, batches):
        with tf.Graph().as_default():
            dataset = tf.data.Dataset.range(batches).map(lambda i: tf.cast(i, tf.float64))
            target = v1.data.make_one_shot_iterator(dataset).get_next()
            weight = v1.get_variable("weight", initializer=np.float64(0))
            optimizer = hvd_tf.DistributedOptimizer(
                train.GradientDescentOptimizer(RATE), backward_passes_per_step=2
            )
            step = train.get_or_create_global_step()
            update = optimizer.minimize((weight - target) ** 2, step)
            at_end = AtEnd([step, weight])
            hooks = [hvd_tf.BroadcastGlobalVariablesHook(0), *hooks, at_end]
            with train.MonitoredTrainingSession(hooks=hooks) as session:
                while not session.should_stop():
                    session.run(update)
        return at_end.values

    step, weight = accumulating([toolkit.EndTogetherHook()], 7 if rank == 0 else 12)
    want = 0.0
    for first in range(0, 6, 2):
        want -= RATE * sum(2 * (want - target) for target in (first, first + 1))
    assert step == 7  # with a pass that no update has seen
    np.testing.assert_allclose(weight, want, rtol=1e-12)


def test_ends_in_an_estimator(rank, size, tmp_path):
    estimator, input_fn = estimator_and_input(batches_of(rank), tmp_path / "model")
    hooks = [hvd_tf.BroadcastGlobalVariablesHook(0), toolkit.EndTogetherHook()]
    for done in (1, 2):
        estimator.train(input_fn, hooks=hooks)
        if rank == 0:
            assert estimator.get_variable_value("global_step") == done * fewest(size)
    if rank == 0:
        weight = 0.0
        for step in [*range(fewest(size))] * 2:
            weight -= RATE * np.mean([2 * (weight - step - peer) for peer in range(size)])
        np.testing.assert_allclose(estimator.get_variable_value("weight"), weight, rtol=1e-12)
    hvd_tf.allgather_object(None)


def test_end_together_refuses():
    with pytest.raises(ValueError, match='when must be "first" or "last". Received: \'sometime\''):
        toolkit.EndTogetherHook(when="sometime")
