# SPDX-License-Identifier: Apache-2.0
"""EndTogetherHook(when="last"): no batch is lost, and all end with the last rank's variables."""

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

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3, "2x2")

v1 = tf.compat.v1
train = v1.train
toolkit = hvd.estimator

# How many batches ranks 0 to 3 have.
COUNTS = {
    "rank 0 first": (2, 5, 3, 4),
    "rank 0 last": (6, 2, 0, 3),
    "rank 0 has none": (0, 4, 2, 4),
    "equal": (3, 3, 3, 3),
}


@pytest.fixture(params=COUNTS)
def counts(request, size):
    return COUNTS[request.param][:size]


def last():
    return toolkit.EndTogetherHook(when="last")


def uneven_weight(counts, steps=None, active=False, weight=0.0):
    """The weight after so many steps, or all, computed in one process."""
    for step in range(max(counts) if steps is None else steps):
        ranks = [rank for rank, count in enumerate(counts) if step < count]
        gradients = [2 * (weight - (step + rank)) for rank in ranks]
        weight -= RATE * np.sum(gradients) / (len(ranks) if active else len(counts))
    return weight


def check(found, counts, **expected):
    """Found on every rank: the last rank's global step and weight."""
    steps = expected.get("steps") or max(counts)
    assert found is not None and found[0] == steps
    np.testing.assert_allclose(found[1], uneven_weight(counts, **expected), rtol=1e-12)
    assert len({np.float64(one[1]).tobytes() for one in hvd.allgather_object(found)}) == 1


def test_no_batch_is_lost(rank, counts, tmp_path):
    """Twice with one hook. Rank 0's last checkpoint holds what the last rank has."""
    hook = last()
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        check(training_with_checkpoint([hook], counts[rank], folder), counts)


@pytest.mark.usefixtures("active_average")
def test_averages_over_the_ranks_that_go_on(rank, size):
    counts = COUNTS["rank 0 first"][:size]
    check(training([last()], counts[rank]), counts, active=True)


def test_the_last_step_counts_for_those_that_go_on(rank, counts):
    steps = min(4, max(counts))
    check(training([last(), stop_at(4)], counts[rank]), counts, steps=steps)
    check(training([stop_at(4), last()], counts[rank]), counts, steps=steps)


class Stop(train.SessionRunHook):
    """Stops this rank's loop after so many steps."""

    def __init__(self, steps):
        self.steps, self.left = steps, 0

    def begin(self):
        self.left = self.steps

    def after_run(self, run_context, run_values):
        self.left -= 1
        if self.left == 0:
            run_context.request_stop()


def test_a_rank_that_is_stopped_ends_all(rank, size):
    """Rank 0 waits already, others go on."""
    counts = (1, 9, 7, 8)[:size]
    stopped = 1 % size
    steps = 3 if size > 1 else 1
    found = training([last(), *([Stop(3)] if rank == stopped else [])], counts[rank])
    check(found, counts, steps=steps)


def failing(rank, counts, bad_rank, bad_step):
    """One rank's step fails in a training with uneven data."""

    class Check(train.SessionRunHook):
        runs = 0

        def begin(self):
            self.value = v1.placeholder(tf.float32, [])
            self.check = v1.check_numerics(self.value, "not a number")

        def before_run(self, run_context):
            self.runs += 1
            bad = rank == bad_rank and self.runs == bad_step
            return train.SessionRunArgs(self.check, {self.value: np.nan if bad else 1.0})

    return outcome(training, [last(), Check()], counts[rank])


def test_an_error_is_an_error_on_every_rank(rank, size):
    """On ranks that go on, and on one that waits. The job lives."""
    if size == 1:
        pytest.skip("needs ranks")
    counts = (1, 5, 6, 6)[:size]
    found = failing(rank, counts, bad_rank=1, bad_step=3)
    if rank == 1:
        assert isinstance(found, tf.errors.InvalidArgumentError) and "not a number" in str(found)
    else:
        assert isinstance(found, tf.errors.UnknownError) and "rank 1" in str(found)
    if rank == 0:
        assert "rank 1 failed while this rank waited" in str(found) and "not a number" in str(found)
    check(training([last()], counts[rank]), counts)


def test_a_tensor_that_does_not_wait_for_data(rank, size, flags):
    """It is sent in a step without data, so the others lose theirs: an error that says so."""
    if size == 1:
        pytest.skip("needs ranks")
    counts = (2, 4, 4, 4)[:size]

    runs = []

    def after_rank_0(value):
        if len(runs) > counts[0]:
            flags.wait("no more data")
        return value

    class Told(train.SessionRunHook):
        def after_create_session(self, session, coord):
            run = session.run

            def telling(*args, **kwargs):
                try:
                    return run(*args, **kwargs)
                except tf.errors.OutOfRangeError:
                    if rank == 0:
                        flags.raise_("no more data")
                    raise

            session.run = telling

    class Sent(train.SessionRunHook):
        def begin(self):
            # The others send it when rank 0 has found that it has no more data.
            one = tf.ones([])
            if rank:
                one = tf.numpy_function(after_rank_0, [one], tf.float32)
                one.set_shape([])
            self.sum = hvd.allreduce(one, name="no_data", ignore_name_scope=True)

        def before_run(self, run_context):
            runs.append(1)
            return train.SessionRunArgs(self.sum)

    found = outcome(training, [Told(), last(), Sent()], counts[rank])
    assert isinstance(found, RuntimeError), found
    assert "the data of rank 0 ended in a step in which it had begun to send" in str(found)
    assert "no_data" in str(found) and 'pass when="first"' in str(found)
    check(training([last()], counts[rank]), counts)


def test_gradients_that_depend_on_no_data(rank, counts):
    """Their ranks send none in the step that finds no more data."""
    with tf.Graph().as_default():
        numbers = tf.data.Dataset.range(counts[rank])
        target = tf.cast(v1.data.make_one_shot_iterator(numbers).get_next() + rank, tf.float64)
        weight = v1.get_variable("weight", initializer=np.float64(0))
        decaying = v1.get_variable("decaying", initializer=np.float64(8))
        loss = (weight - target) ** 2 + decaying**2
        step = train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(train.GradientDescentOptimizer(RATE))
        update = optimizer.minimize(loss, step)
        at_end = AtEnd([step, weight, decaying])
        hooks = [hvd.BroadcastGlobalVariablesHook(0), last(), at_end]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(update)
    check(at_end.values[:2], counts)
    want = 8.0
    for number in range(max(counts)):
        active = sum(number < count for count in counts)
        want -= RATE * 2 * want * active / len(counts)
    np.testing.assert_allclose(at_end.values[2], want, rtol=1e-12)


def test_epochs_of_a_program_that_reads_its_data_again(rank, counts):
    step, got = training_in_epochs(last(), counts[rank], 3)
    want = 0.0
    for _ in range(3):
        want = uneven_weight(counts, weight=want)
    assert step == 3 * max(counts)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_averages_of_metrics_count_the_ranks_that_go_on(rank, counts):
    seen = []
    hook = toolkit.MetricAverageHook(["loss"], every_n_steps=1)

    def step_fn(session, update):
        session.run(update)
        seen.append(hook.averages["loss"])

    training([hook, last()], counts[rank], step_fn=step_fn)
    assert len(seen) == counts[rank]
    for step, average in enumerate(seen):
        weight = uneven_weight(counts, steps=step)
        losses = [(weight - step - r) ** 2 for r, count in enumerate(counts) if step < count]
        np.testing.assert_allclose(average, np.mean(losses), rtol=1e-12)


def test_in_an_estimator(rank, counts, tmp_path):
    """Three trainings in a row: uneven ends, the last step, uneven ends."""
    estimator, input_fn = estimator_and_input(counts[rank], tmp_path / "model")
    hooks = [hvd.BroadcastGlobalVariablesHook(0), last()]
    weight, done = 0.0, 0
    for steps in (max(counts), 2, max(counts)):
        limit = None if steps == max(counts) else done + steps
        estimator.train(input_fn, hooks=hooks, max_steps=limit)
        weight, done = uneven_weight(counts, steps=steps, weight=weight), done + steps
        if rank == 0:
            assert estimator.get_variable_value("global_step") == done
            np.testing.assert_allclose(estimator.get_variable_value("weight"), weight, rtol=1e-9)
        # Estimator.train would return at once on a rank whose own model is at max_steps.
        hvd.allgather_object(None)
