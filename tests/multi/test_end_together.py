# SPDX-License-Identifier: Apache-2.0
"""EndTogetherHook where ranks wait for more than gradients, and where hooks run the session too."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from one_weight import RATE, AtEnd, outcome, stop_at, training

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3, "2x2")

v1 = tf.compat.v1
train = v1.train
toolkit = hvd.estimator


class BadRecordError(Exception):
    """A map function raises it."""


def forward_training(hooks, batches, in_function=False, fails_at=None):
    """The loss is of the mean of all ranks' data. Returns step and weight at an orderly end."""

    def checked(number):
        if fails_at is not None and number == fails_at:
            raise BadRecordError(f"no record {number}")
        return number

    def mean(x):
        return hvd.allreduce(x, name=None if in_function else "forward")

    with tf.Graph().as_default():
        dataset = tf.data.Dataset.range(batches).map(
            lambda number: tf.numpy_function(checked, [number], tf.int64)
        )
        number = v1.data.make_one_shot_iterator(dataset).get_next()
        number.set_shape([])
        x = tf.cast(number + hvd.rank(), tf.float64)
        weight = v1.get_variable("weight", initializer=np.float64(0))
        loss = (weight - (tf.function(mean) if in_function else mean)(x)) ** 2
        step = train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(train.GradientDescentOptimizer(RATE))
        update = optimizer.minimize(loss, step)
        at_end = AtEnd([step, weight])
        hooks = [hvd.BroadcastGlobalVariablesHook(0), *hooks, at_end]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(update)
    return at_end.values


def forward_weight(size, steps):
    weight = 0.0
    for step in range(steps):
        weight -= RATE * 2 * (weight - (step + (size - 1) / 2))
    return weight


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("when", ["first", "last"])
def test_an_end_before_a_collective_of_the_forward_pass(rank, size, when, in_function):
    """A hook that stops one rank, or its data that ends."""
    hook = toolkit.EndTogetherHook(when)
    mine = 3 if rank == size - 1 else 6
    found = [forward_training([hook, stop_at(mine)], 9, in_function)]
    if when == "first":
        found.append(forward_training([hook], mine, in_function))
    for step, weight in found:
        assert step == 3
        np.testing.assert_allclose(weight, forward_weight(size, 3), rtol=1e-12)


def test_a_failure_before_a_collective_of_the_forward_pass(rank, size):
    fails_at = 2 if rank == size - 1 else None
    found = outcome(forward_training, [toolkit.EndTogetherHook()], 9, fails_at=fails_at)
    assert isinstance(found, tf.errors.OpError)
    assert "BadRecordError: no record 2" in str(found)
    assert forward_training([toolkit.EndTogetherHook()], 4)[0] == 4  # the job lives


def test_a_failure_in_the_step_in_which_other_data_ends(rank, size):
    """It is no end of the data on the rank that fails."""
    failing = rank == size - 1
    batches, fails_at = (9, 2) if failing else (2, None)
    hooks = [toolkit.EndTogetherHook()]
    found = outcome(forward_training, hooks, batches, fails_at=fails_at)
    assert "BadRecordError: no record 2" in str(found) if failing else found[0] == 2
    assert forward_training([toolkit.EndTogetherHook()], 4)[0] == 4  # the job lives


def test_passes_of_which_few_reduce(rank, size):
    """With two passes in a step, the others wait for a rank's metric, and for no gradient."""
    for end in (5, 6):  # within two passes, and behind them
        # The next pass may have been counted, where it has nothing to reduce.
        ends = {5: (5,), 6: (6, 7)}[end]
        hooks = [
            toolkit.MetricAverageHook(["loss"], every_n_steps=1),
            toolkit.EndTogetherHook(),
            stop_at(end if rank == size - 1 else 12),
        ]
        assert accumulating(hooks, 20) in ends
        hooks = hooks[:2]
        assert accumulating(hooks, end if rank == 0 else 20) in ends


def accumulating(hooks, batches):
    """Train with two passes in a step. Returns the global step at an orderly end."""
    with tf.Graph().as_default():
        number = v1.data.make_one_shot_iterator(tf.data.Dataset.range(batches)).get_next()
        weight = v1.get_variable("weight", initializer=np.float64(0))
        loss = tf.identity((weight - tf.cast(number, tf.float64)) ** 2, "loss")
        step = train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(
            train.GradientDescentOptimizer(RATE), backward_passes_per_step=2
        )
        update = optimizer.minimize(loss, step)
        at_end = AtEnd(step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), *hooks, at_end]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(update)
    return at_end.values


class Validation(train.SessionRunHook):
    """Reads another iterator to its end, on this rank alone."""

    def begin(self):
        data = tf.data.Dataset.range(3)
        self.iterator = v1.data.make_initializable_iterator(data)
        self.read, self.seen = self.iterator.get_next(), 0

    def after_run(self, run_context, run_values):
        session = run_context.session
        session.run(self.iterator.initializer)
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                session.run(self.read)
                self.seen += 1


@pytest.mark.parametrize("when", ["first", "last"])
def test_a_hook_may_read_data_of_its_own_to_the_end(rank, size, when):
    validation = Validation()
    hooks = [validation] if rank == 0 else []
    assert training([*hooks, toolkit.EndTogetherHook(when), stop_at(6)])[0] == 6
    assert validation.seen == 18 if rank == 0 else True


class AtEndTogether(train.SessionRunHook):
    """Adds up over the ranks when the loop has ended."""

    def __init__(self):
        self.found = None

    def begin(self):
        self.sum = hvd.allreduce(tf.ones([]), op=hvd.Sum, name="at_end", ignore_name_scope=True)

    def end(self, session):
        self.found = session.run(self.sum)


@pytest.mark.parametrize("when", ["first", "last"])
def test_a_hook_may_reduce_at_the_end(rank, size, when):
    for attempt in range(5):
        hook = AtEndTogether()
        mine = 2 if rank == attempt % size else 4
        found = training([toolkit.EndTogetherHook(when), stop_at(mine), hook])
        assert (found[0], hook.found) == (2, size)


def test_averages_leave_other_data_alone(rank, size):
    """The steps are fed. What the graph reads is of another session run."""
    with tf.Graph().as_default():
        read = v1.data.make_one_shot_iterator(tf.data.Dataset.range(2)).get_next()
        fed = v1.placeholder(tf.float64, [])
        weight = v1.get_variable("weight", initializer=np.float64(0))
        loss = tf.identity((weight - fed) ** 2, "loss")
        step = train.get_or_create_global_step()
        optimizer = hvd.DistributedOptimizer(train.GradientDescentOptimizer(RATE))
        update = optimizer.minimize(loss, step)
        at_end = AtEnd([step, read])
        average = toolkit.MetricAverageHook(["loss"], every_n_steps=1)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), average, stop_at(5), at_end]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(update, {fed: 1.0})
    assert at_end.values == [5, 0]


def test_averages_wait_for_the_data(rank, size):
    """That of a variable needs none. A rank without data must not send it all the same."""
    for _ in range(5):
        hook = toolkit.MetricAverageHook(
            {"weight": "weight/Read/ReadVariableOp:0"}, every_n_steps=1
        )
        found = training([hook, toolkit.EndTogetherHook("last")], 2 if rank == 0 else 5)
        assert found[0] == (5 if size > 1 else 2)
