# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer that reduces every few passes: sums and averages against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from failing import failed_pass
from linear_loss import STEPS, assert_same_weights, loss_of, make_variables, trained_alone

import hvd_tf

RANKS = (2,)
IN_FULL = (4, "2x2")

v1 = tf.compat.v1
train = v1.train


def gradient_of(rank, run):
    return np.random.default_rng([5, rank, run]).standard_normal(4)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("passes", [2, 3])
def test_accumulation_matches_numpy(rank, size, passes, average):
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(4))
        unused = v1.get_variable("unused", [2])
        fed = v1.placeholder(tf.float64, [4])
        step = train.get_or_create_global_step()
        optimizer = hvd_tf.DistributedOptimizer(
            train.MomentumOptimizer(0.5, 0.5),
            backward_passes_per_step=passes,
            average_aggregated_gradients=average,
        )
        update = optimizer.minimize(
            tf.reduce_sum(weights * fed), global_step=step, var_list=[weights, unused]
        )
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [update]
        names = {v.op.name for v in v1.global_variables()}
        assert names == {"weights", "unused", "global_step", "weights/Momentum"}
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        expected, momentum = np.zeros(4), np.zeros(4)
        for run in range(3 * passes + 1):
            session.run(update, {fed: gradient_of(rank, run)})
            if run % passes == passes - 1:
                runs = range(run - passes + 1, run + 1)
                total = sum(gradient_of(r, n) for r in range(size) for n in runs) / size
                momentum = 0.5 * momentum + total / (passes if average else 1)
                expected = expected - 0.5 * momentum
            np.testing.assert_allclose(session.run(weights), expected, rtol=1e-12, atol=1e-13)
            assert session.run(step) == run + 1  # of passes, as with Horovod


def test_accumulation_of_slices(rank, size):
    def build(sparse_as_dense):
        variables = make_variables()
        return variables, hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(0.1),
            backward_passes_per_step=2,
            average_aggregated_gradients=True,
            sparse_as_dense=sparse_as_dense,
        ).minimize(loss_of(rank, *variables))

    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="table:0' is IndexedSlices.*sparse_as_dense=True"):
            build(False)
    with tf.Graph().as_default(), v1.Session() as session:
        variables, update = build(True)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for _ in range(2 * STEPS):
            session.run(update)
        alone = trained_alone(size, lambda: train.GradientDescentOptimizer(0.1))
        assert_same_weights(session.run(variables), alone)


def test_accumulation_reduces_in_the_last_pass_only(rank, size):
    """Until then the ranks are independent: rank 0 may run a pass while the others do not."""
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(1))
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        optimizer.register_local_var(weights)
        update = optimizer.minimize(weights * (rank + 1))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for passes in range(1, 2 + 2 * rank):  # a local variable: nothing to wait for
            session.run(update)
            expected = -(passes // 2) * 2 * (rank + 1) / size
            np.testing.assert_allclose(session.run(weights), [expected], rtol=1e-12)


@pytest.mark.parametrize("average", [False, True])
def test_a_pass_that_fails_delays_the_update(rank, size, average):
    """The last rank's second pass fails, and so does the others' reduction. The third reduces."""
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(4))
        fed, fails = v1.placeholder(tf.float64, [4]), v1.placeholder(tf.bool, [])
        with tf.control_dependencies([tf.debugging.Assert(~fails, ["no data"])]):
            gradient = tf.identity(fed)
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        update = optimizer.minimize(tf.reduce_sum(weights * gradient))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])

        def run(number, failing=False):
            session.run(update, {fed: gradient_of(rank, number), fails: failing})

        run(0)
        failed_pass(lambda: run(1, rank == size - 1), rank == size - 1)
        for number in (2, 3, 4):
            run(number)
        expected = np.zeros(4)
        for r in range(size):
            passes = [0, 2] if r == size - 1 else [0, 1, 2]
            sums = [sum(gradient_of(r, n) for n in runs) for runs in (passes, [3, 4])]
            expected -= (sums[0] / len(passes) + sums[1] / 2 if average else sum(sums)) / size
        np.testing.assert_allclose(session.run(weights), expected, rtol=1e-12, atol=1e-13)


def test_two_lists_of_variables_take_turns(size):
    """Each has passes of its own, also where both gradients are made before both updates."""
    with tf.Graph().as_default(), v1.Session() as session:
        first = v1.get_variable("first", initializer=np.zeros(1))
        second = v1.get_variable("second", initializer=np.zeros(1))
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        pairs = [
            optimizer.compute_gradients(tf.reduce_sum(v * 2.0), var_list=[v])
            for v in (first, second)
        ]
        updates = [optimizer.apply_gradients(own) for own in pairs]
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for run in range(1, 6):
            for update in updates:
                session.run(update)
            assert session.run([first, second]) == [[-4.0 * (run // 2)]] * 2


def as_they_are(pairs):
    return pairs


def clipped(pairs):
    gradients, variables = zip(*pairs)
    return list(zip(tf.clip_by_global_norm(gradients, 1e6)[0], variables))


def divided(pairs):
    return [(gradient / 2.0 * 2.0, variable) for gradient, variable in pairs]


@pytest.mark.parametrize("within_a_branch", [False, True])
@pytest.mark.parametrize("changed", [as_they_are, clipped, divided])
def test_two_losses_of_the_same_variables(rank, size, changed, within_a_branch):
    """Each has passes of its own. The gradients tell which of them an update is of."""
    with tf.Graph().as_default(), v1.Session() as session:
        weights = [v1.get_variable(name, initializer=np.zeros(1)) for name in ("first", "second")]
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        pairs = [
            optimizer.compute_gradients(factor * tf.add_n(weights) * (rank + 1.0), weights)
            for factor in (1.0, 100.0)
        ]
        applied = [lambda own=own: optimizer.apply_gradients(changed(own)) for own in pairs]
        if within_a_branch:
            yes = v1.placeholder_with_default(True, [])
            updates = [tf.cond(yes, lambda a=a: tf.group(a()), tf.no_op) for a in applied]
        else:
            updates = [apply() for apply in applied]
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        mean = (size + 1) / 2
        for run in range(1, 6):  # of the first alone, also where that begins a pass of the second
            session.run(updates[0])
            np.testing.assert_allclose(session.run(weights), [[-(run // 2 * 2) * mean]] * 2)
        for run in range(1, 6):
            session.run(updates[1])
            expected = -(4 + run // 2 * 200) * mean
            np.testing.assert_allclose(session.run(weights), [[expected]] * 2)


def by_hand(session, gradient, weights, optimizer):
    """One run makes a pass, another one applies what the first has returned."""
    fed = v1.placeholder(gradient.dtype, gradient.shape)
    update = optimizer.apply_gradients([(fed, weights)])
    return lambda: session.run(update, {fed: session.run(gradient)})


def by_a_variable(session, gradient, weights, optimizer):
    kept = v1.get_variable("kept", initializer=np.zeros(1), trainable=False, use_resource=True)
    with tf.control_dependencies([kept.assign(gradient)]):
        update = optimizer.apply_gradients([(kept.read_value(), weights)])
    return lambda: session.run(update)


@pytest.mark.parametrize("build", [by_hand, by_a_variable])
def test_gradients_on_detours(rank, size, build):
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(1))
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        ((gradient, _),) = optimizer.compute_gradients(weights * (rank + 1.0), [weights])
        run_pass = build(session, gradient, weights, optimizer)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for run in range(1, 6):
            run_pass()
            expected = -(run // 2 * 2) * (size + 1) / 2
            np.testing.assert_allclose(session.run(weights), [expected])


def in_a_loop(step, passes):
    def body(number):
        with tf.control_dependencies([step()]):
            return number + 1

    return tf.while_loop(lambda number: number < passes, body, [0], parallel_iterations=1)


def in_a_function(step, passes):
    return tf.function(lambda: in_a_loop(step, passes))()


@pytest.mark.parametrize("op", [hvd_tf.Sum, hvd_tf.Adasum])
@pytest.mark.parametrize("build", [in_a_loop, in_a_function])
def test_several_passes_in_one_run(rank, size, build, op):
    """The sums are made outside of loops and functions."""
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(1), use_resource=True)
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=2, op=op
        )

        def step():
            return optimizer.apply_gradients(optimizer.compute_gradients(weights * 3.0, [weights]))

        run = build(step, 4)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(run)
        # Adasum of equal steps is their average.
        expected = -4 * 3.0 * (size if op == hvd_tf.Sum else 1)
        np.testing.assert_allclose(session.run(weights), [expected])


def test_a_training_ends_at_a_pass():
    """StopAtStepHook counts passes: 7 of 3 each are two updates, and one pass more."""
    with tf.Graph().as_default():
        step = train.get_or_create_global_step()
        weights = v1.get_variable("weights", initializer=np.zeros(1))
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=3
        )
        update = optimizer.minimize(tf.reduce_sum(weights), global_step=step)
        passes = 0
        with train.MonitoredTrainingSession(
            hooks=[train.StopAtStepHook(last_step=7), hvd_tf.BroadcastGlobalVariablesHook(0)]
        ) as session:
            while not session.should_stop():
                _, result = session.run([update, weights])
                passes += 1
        assert passes == 7
        assert result.tolist() == [-6.0]


@pytest.mark.parametrize("has_other_gradients", [False, True])
def test_own_gradients_are_applied_at_once(has_other_gradients):
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(2))
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        if has_other_gradients:
            optimizer.compute_gradients(tf.reduce_sum(weights), [weights])
        update = optimizer.apply_gradients([(np.array([1.0, 2.0]), weights)])
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(update)
        assert session.run(weights).tolist() == [-1.0, -2.0]
