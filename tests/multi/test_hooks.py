# SPDX-License-Identifier: Apache-2.0
"""BroadcastGlobalVariablesHook: sessions that start alike, and ends that are announced."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from cases import has_estimator, needs_estimator

import hvd_tf

RANKS = (2,)
IN_FULL = (4, "2x2")

v1 = tf.compat.v1
train = v1.train
if has_estimator():
    hvd_tf.estimator.provide_tf_estimator()


def build(start, shape=(3,)):
    """A model whose weights begin with `start`. Returns them and the training operation."""
    weights = v1.get_variable("weights", initializer=np.full(shape, float(start)))
    optimizer = hvd_tf.DistributedOptimizer(train.AdagradOptimizer(0.5))
    step = train.get_or_create_global_step()
    target = tf.constant(hvd_tf.rank(), weights.dtype)
    return weights, optimizer.minimize(tf.reduce_sum((weights - target) ** 2), global_step=step)


class LastValues(train.SessionRunHook):
    """What the tensors are at the end."""

    def __init__(self, tensors):
        self.tensors, self.values = tensors, None

    def end(self, session):
        self.values = session.run(self.tensors)


def run_session(hooks, start=0.0, checkpoint_dir=None, save_steps=None):
    """Train until a hook stops the session. Returns the global step and the weights."""
    with tf.Graph().as_default():
        weights, update = build(start)
        last = LastValues([train.get_global_step(), weights])
        with train.MonitoredTrainingSession(
            hooks=[*hooks, last],
            checkpoint_dir=checkpoint_dir,
            save_checkpoint_steps=save_steps,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
        ) as session:
            while not session.should_stop():
                session.run(update)
    return last.values


def stop_at(**arguments):
    return train.StopAtStepHook(**arguments)


def assert_alike(value):
    everyones = hvd_tf.allgather_object(value.tobytes())
    assert all(other == everyones[0] for other in everyones)


def test_it_is_a_session_run_hook():
    hook = hvd_tf.BroadcastGlobalVariablesHook(0, device="")
    assert isinstance(hook, train.SessionRunHook)
    if has_estimator():
        assert isinstance(hook, tf.estimator.SessionRunHook)


def test_sessions_start_alike(rank, size):
    root = size - 1
    with tf.Graph().as_default():
        weights, _ = build(start=rank)
        hook = hvd_tf.BroadcastGlobalVariablesHook(root, device="/cpu:0")
        with train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(weights).tolist() == [float(root)] * 3
            slot = next(v for v in v1.global_variables() if "Adagrad" in v.op.name)
            np.testing.assert_allclose(session.run(slot), [0.1] * 3, rtol=1e-6)


def test_training_and_a_second_training_with_the_same_hook(rank):
    hook = hvd_tf.BroadcastGlobalVariablesHook(0)
    for last in (3, 5):
        step, weights = run_session([hook, stop_at(last_step=last)], start=rank)
        assert step == last
        assert_alike(weights)
        time.sleep(0.3 * rank)  # ranks come to the next loop one after another


def test_reference_variables(rank):
    with tf.Graph().as_default():
        with v1.variable_scope("", use_resource=False):
            weights = v1.get_variable("weights", initializer=float(rank))
        hook = hvd_tf.BroadcastGlobalVariablesHook(0)
        with train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(weights) == 0.0


def test_accumulation_in_a_monitored_session(rank):
    """The session initialises the sums, and the global step counts passes."""
    with tf.Graph().as_default():
        weights = v1.get_variable("weights", initializer=np.full(2, float(rank)))
        optimizer = hvd_tf.DistributedOptimizer(
            train.GradientDescentOptimizer(0.25), backward_passes_per_step=3
        )
        step = train.get_or_create_global_step()
        update = optimizer.minimize(tf.reduce_sum(weights**2), global_step=step)
        hooks = [hvd_tf.BroadcastGlobalVariablesHook(1), stop_at(last_step=6)]
        last = LastValues([step, weights])
        runs = 0
        with train.MonitoredTrainingSession(hooks=[*hooks, last]) as session:
            while not session.should_stop():
                session.run(update)
                runs += 1
    assert runs == 6 and last.values[0] == 6
    # Each update takes off 0.25 * 3 * 2 * weights.
    np.testing.assert_allclose(last.values[1], [0.25, 0.25], rtol=1e-12)


def test_variables_that_differ_are_named_on_every_rank(rank, size):
    with tf.Graph().as_default():
        v1.get_variable("common", [2])
        if rank == 1:
            v1.get_variable("only_here", [2])
        v1.get_variable("table", [2 + rank % 2, 4])
        hook = hvd_tf.BroadcastGlobalVariablesHook(0)
        with pytest.raises(ValueError) as caught, train.MonitoredTrainingSession(hooks=[hook]):
            pass
    text = str(caught.value)
    assert "every rank must build the same model" in text
    assert "rank 1: has only_here float32 (2,), table float32 (3, 4)" in text
    assert "lacks table float32 (2, 4)" in text
    assert ("rank 3: has table float32 (3, 4)" in text) == (size == 4) and "rank 2" not in text
    step, _ = run_session([hook, stop_at(last_step=1)])  # the job lives
    assert step == 1


def expect_end_of(peer, what, fn):
    """`fn` fails, and says that `peer` has ended its loop.

    No time limit of the library ends such a call. So it hears of the peer's end, or it hangs.
    """
    with pytest.raises(tf.errors.UnknownError) as caught:
        fn()
    text = str(caught.value)
    assert "gradient/" in text and f"rank {peer}" in text and what in text, text


def test_a_rank_that_ends_earlier_fails_those_that_go_on(rank):
    def training():
        hook = hvd_tf.BroadcastGlobalVariablesHook(0)
        return run_session([hook, stop_at(last_step=3 if rank == 0 else 6)])

    if rank == 0:
        assert training()[0] == 3
    else:
        expect_end_of(0, "its training loop ended at global step 3", training)
    hvd_tf.allgather_object(None)
    step, weights = run_session(
        [hvd_tf.BroadcastGlobalVariablesHook(0), stop_at(last_step=2)], start=rank
    )
    assert step == 2
    assert_alike(weights)


def test_a_rank_that_runs_out_of_data(rank, size):
    def training():
        with tf.Graph().as_default():
            batches = tf.data.Dataset.range(2 + (rank != size - 1))
            number = v1.data.make_one_shot_iterator(batches).get_next()
            with tf.control_dependencies([number]):
                _, update = build(0.0)
            hook = hvd_tf.BroadcastGlobalVariablesHook(0)
            with train.MonitoredTrainingSession(hooks=[hook]) as session:
                while not session.should_stop():
                    session.run([number, update])

    try:
        training()
        outcome = "ended"
    except tf.errors.UnknownError as error:
        outcome = str(error)
    outcomes = hvd_tf.allgather_object(outcome)
    assert outcomes[-1] == "ended"
    for text in outcomes[:-1]:
        assert f"rank {size - 1}" in text, text


@pytest.mark.parametrize("broadcast_first", [True, False])
def test_resuming_with_num_steps(rank, tmp_path, broadcast_first):
    """Only rank 0 has a checkpoint. A hook that reads the step too early stops others too early."""
    directory = str(tmp_path) if rank == 0 else None
    hook = hvd_tf.BroadcastGlobalVariablesHook(0)
    step, _ = run_session([hook, stop_at(num_steps=3)], checkpoint_dir=directory, save_steps=3)
    assert step == 3

    def resumed():
        stop = stop_at(num_steps=4)
        hooks = [hook, stop] if broadcast_first else [stop, hook]
        return run_session(hooks, start=rank, checkpoint_dir=directory, save_steps=3)

    if broadcast_first:
        step, weights = resumed()
        assert step == 7
        assert_alike(weights)
    elif rank == 0:
        with pytest.raises(tf.errors.UnknownError) as caught:
            resumed()
        assert "its training loop ended at global step 4" in str(caught.value)
        assert "list BroadcastGlobalVariablesHook before StopAtStepHook" in str(caught.value)
    else:
        assert resumed()[0] == 4
    hvd_tf.allgather_object(None)


def test_a_session_made_anew_on_one_rank(rank):
    """The others wait for its gradients: they are told, and may start anew as well."""
    with tf.Graph().as_default():
        weights, update = build(rank)
        initializer = v1.global_variables_initializer()
        hook = hvd_tf.BroadcastGlobalVariablesHook(0)
        hook.begin()

        def fresh():
            session = v1.Session()
            session.run(initializer)
            hook.after_create_session(session, None)
            return session

        session = fresh()
        session.run(update)
        if rank != 1:
            what = "it is starting a training session"
            expect_end_of(1, what, lambda: [session.run(update) for _ in range(3)])
        session = fresh()
        session.run(update)
        assert_alike(session.run(weights))
        hook.end(session)


def test_a_hook_that_one_rank_lacks(rank):
    """That one does not wait for the broadcast, and soon for the gradients of the others."""
    with tf.Graph().as_default():
        _, update = build(0.0)
        hook = hvd_tf.BroadcastGlobalVariablesHook(0)
        stop = stop_at(last_step=2)

        def training(hooks):
            with train.MonitoredTrainingSession(hooks=hooks) as session:
                while not session.should_stop():
                    session.run(update)

        if rank == 0:
            # It sees the others' new start, or still the end of the last test's loop.
            what = (
                "will not come from rank.*(is starting a training session|its training loop ended)"
            )
            with pytest.raises(tf.errors.UnknownError, match=what):
                training([stop])
        training([hook, stop])


# ---- Estimator ---------------------------------------------------------------------------------


def model_fn(features, labels, mode):
    x = tf.cast(features["x"], tf.float64)
    weights = v1.get_variable("weights", initializer=np.full((1,), float(hvd_tf.rank())))
    predictions = x * weights
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": predictions})
    loss = tf.reduce_mean((predictions - tf.cast(labels, tf.float64)) ** 2)
    optimizer = hvd_tf.DistributedOptimizer(train.MomentumOptimizer(1 / 16, 0.5))
    update = optimizer.minimize(loss, global_step=train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=update)


def input_fn():
    x = np.arange(4.0) + hvd_tf.rank()
    return tf.data.Dataset.from_tensors(({"x": x}, 3 * x)).repeat()


def make_estimator(tmp_path):
    config = tf.estimator.RunConfig(
        save_checkpoints_steps=5 if hvd_tf.rank() == 0 else None, log_step_count_steps=None
    )
    return tf.estimator.Estimator(model_fn, str(tmp_path), config=config)


def reference_weights(size, steps):
    weights, momentum = 0.0, 0.0
    for _ in range(steps):
        gradients = []
        for rank in range(size):
            x = np.arange(4.0) + rank
            gradients.append(np.mean(2 * (weights - 3) * x * x))
        momentum = 0.5 * momentum + np.mean(gradients)
        weights -= momentum / 16
    return weights


@needs_estimator
def test_estimator_trains_evaluates_and_trains_on(rank, size, tmp_path):
    estimator = make_estimator(tmp_path)
    hook = hvd_tf.BroadcastGlobalVariablesHook(0)
    for _ in range(2):
        estimator.train(input_fn, hooks=[hook], steps=4)
        if rank == 0:  # the others are in the next training call meanwhile
            estimator.evaluate(input_fn, steps=1)
    estimator.train(input_fn, hooks=[hook], max_steps=11)
    if rank == 0:  # the others have no checkpoints
        assert estimator.get_variable_value("global_step") == 11
        weights = estimator.get_variable_value("weights")
        np.testing.assert_allclose(weights, [reference_weights(size, 11)], rtol=1e-12)
        names = set(estimator.get_variable_names())
        assert names == {"global_step", "weights", "weights/Momentum"}


@needs_estimator
def test_training_that_rank_0_has_done_already_is_an_error_on_all(rank, tmp_path):
    """Only rank 0 finds its checkpoint again, trains no step, and is the first at what follows."""
    hook = hvd_tf.BroadcastGlobalVariablesHook(0)
    make_estimator(tmp_path / "model").train(input_fn, hooks=[hook], max_steps=4)
    again = make_estimator(tmp_path / ("model" if rank == 0 else "other"))
    words = (
        "rank 0 is about to evaluate while rank 1 is about to start a training session.* Call "
        r"hvd.estimator.train\(estimator, ...\) instead"
    )
    with pytest.raises(ValueError, match=words):
        again.train(input_fn, hooks=[hook], max_steps=4)
        hvd_tf.estimator.evaluate(again, input_fn, steps=1)
    hvd_tf.allgather_object(None)


@needs_estimator
def test_an_exported_model_has_none_of_our_operations(rank, tmp_path):
    estimator = make_estimator(tmp_path / "model")
    estimator.train(input_fn, hooks=[hvd_tf.BroadcastGlobalVariablesHook(0)], steps=2)
    if rank == 0:

        def receiver():
            fed = {"x": v1.placeholder(tf.float64, [None])}
            return tf.estimator.export.ServingInputReceiver(fed, fed)

        path = estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
        with tf.Graph().as_default() as graph, v1.Session() as session:
            v1.saved_model.load(session, ["serve"], path)
            kinds = {operation.type for operation in graph.get_operations()}
            assert kinds and not any(kind.startswith("Horovod") for kind in kinds)
        predict = tf.saved_model.load(path).signatures["serving_default"]
        got = predict(x=tf.constant([2.0], tf.float64))["y"].numpy()
        np.testing.assert_allclose(got, 2 * estimator.get_variable_value("weights"), rtol=1e-12)
    hvd_tf.allgather_object(None)
