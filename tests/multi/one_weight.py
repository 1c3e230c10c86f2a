# SPDX-License-Identifier: Apache-2.0
"""Training of one weight, in a MonitoredTrainingSession or an Estimator.

The loss is (weight - target)^2. The targets of a rank are 0, 1, 2, ... + rank, as many as it has
batches.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

v1 = tf.compat.v1
train = v1.train
RATE = 0.25


class AtEnd(train.SessionRunHook):
    """Keeps the values at an orderly end of the loop. They stay None if the loop fails."""

    def __init__(self, tensors):
        self.tensors, self.values = tensors, None

    def end(self, session):
        self.values = session.run(self.tensors)


def stop_at(step):
    return train.StopAtStepHook(last_step=step)


def targets(batches):
    """A dataset."""
    return tf.data.Dataset.range(batches).map(
        lambda number: tf.cast(number + hvd_tf.rank(), tf.float64)
    )


def build(target, rate=RATE):
    """The weight, the loss and the update. At first each rank's weight is its number."""
    weight = v1.get_variable("weight", initializer=np.float64(hvd_tf.rank()))
    loss = tf.identity((weight - target) ** 2, "loss")
    optimizer = hvd_tf.DistributedOptimizer(train.GradientDescentOptimizer(rate))
    return weight, loss, optimizer.minimize(loss, train.get_or_create_global_step())


def training(hooks, batches=1000, step_fn=None, rate=RATE, **session_arguments):
    """Train until data or hooks end it. Returns global step and weight at an orderly end."""
    with tf.Graph().as_default():
        target = v1.data.make_one_shot_iterator(targets(batches)).get_next()
        weight, _, update = build(target, rate() if callable(rate) else rate)
        at_end = AtEnd([train.get_global_step(), weight])
        arguments = {"save_summaries_steps": None, "log_step_count_steps": None}
        with train.MonitoredTrainingSession(
            hooks=[hvd_tf.BroadcastGlobalVariablesHook(0), *hooks, at_end],
            **{**arguments, **session_arguments},
        ) as session:
            while not session.should_stop():
                if step_fn is None:
                    session.run(update)
                else:
                    step_fn(session, update)
    return at_end.values


def training_with_checkpoint(hooks, batches, folder):
    """The same. Rank 0's last checkpoint must hold what is returned."""
    saves = hvd_tf.rank() == 0
    saving = {"checkpoint_dir": str(folder), "save_checkpoint_steps": 1000} if saves else {}
    step, weight = training(hooks, batches, **saving)
    if saves:
        reader = train.load_checkpoint(str(folder))
        assert reader.get_tensor("global_step") == step
        assert reader.get_tensor("weight") == weight
    return step, weight


def training_in_epochs(hook, batches, epochs):
    """A program that reads its data again. Returns global step and weight."""
    with tf.Graph().as_default():
        iterator = v1.data.make_initializable_iterator(targets(batches))
        weight, _, update = build(iterator.get_next())
        at_end = AtEnd([train.get_global_step(), weight])
        hooks = [hvd_tf.BroadcastGlobalVariablesHook(0), hook, at_end]
        with train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(epochs):
                session.run(iterator.initializer)
                with pytest.raises(tf.errors.OutOfRangeError):
                    while True:
                        session.run(update)
    return at_end.values


def estimator_and_input(batches, folder):
    """An Estimator and its input_fn. Skips the test where there is no Estimator."""
    try:
        names = hvd_tf.estimator.tf_estimator
        estimator_class = names.Estimator
    except ImportError as error:
        pytest.skip(str(error))

    def model_fn(features, labels, mode):
        _, loss, update = build(features)
        return names.EstimatorSpec(mode, loss=loss, train_op=update)

    def input_fn():
        return targets(batches).map(lambda target: (target, 0))

    config = hvd_tf.estimator.run_config(model_dir=str(folder))
    return estimator_class(model_fn, config=config), input_fn


def outcome(fn, *arguments, **keywords):
    """Returns what `fn` returns, or the error that it raises, once all ranks are through."""
    try:
        result = fn(*arguments, **keywords)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        result = error
    hvd_tf.allgather_object(None)
    return result
