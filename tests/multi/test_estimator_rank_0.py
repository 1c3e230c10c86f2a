# SPDX-License-Identifier: Apache-2.0
"""What rank 0 alone does, or has, of an Estimator: chief hooks, saves, weights. As the manual says.

Each rank's RunConfig is that of a chief, and other ranks' model_dir is empty.
"""

from __future__ import annotations

import tempfile
import time

import numpy as np
import pytest
import tensorflow as tf
from cases import needs_estimator

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3,)
TIMEOUT_S = 120

v1 = tf.compat.v1
tfe = hvd.estimator.tf_estimator
pytestmark = needs_estimator

RECORDS = 12
FEATURES = np.random.default_rng(5).standard_normal((RECORDS, 3)).astype(np.float32)
LABELS = FEATURES @ np.float32([[1.0], [-2.0], [0.5]])


def model_fn(features, labels, mode, params):
    weights = v1.get_variable("weights", [3, 1], initializer=v1.random_normal_initializer())
    predictions = tf.matmul(features, weights)
    if mode == "infer":
        return tfe.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean((predictions - labels) ** 2)
    loss = tf.identity(loss, "loss")
    rate = v1.get_variable("rate", initializer=0.05, trainable=False)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(rate))
    train = optimizer.minimize(loss, v1.train.get_global_step())
    chief_hooks = params["chief_hooks"]() if "chief_hooks" in params else ()
    return tfe.EstimatorSpec(mode, loss=loss, train_op=train, training_chief_hooks=chief_hooks)


def share():
    whole = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).repeat()
    return whole.shard(hvd.size(), hvd.rank()).batch(4)


def whole():
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(5)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as directory:
        yield directory


def make_estimator(folder, **params):
    config = hvd.estimator.run_config(folder, tf_random_seed=1, save_checkpoints_steps=2)
    return tfe.Estimator(model_fn, config=config, params=params)


class Steps(v1.train.SessionRunHook):
    """How many steps this rank has made with the hook."""

    made = 0

    def after_run(self, run_context, run_values):
        self.made += 1


def test_chief_hooks_of_train_and_evaluate_are_rank_0s(folder, rank):
    with tempfile.TemporaryDirectory() as other:
        steps = Steps()
        # As in tf.estimator, one that saves takes the place of the Estimator's own.
        saver = v1.train.CheckpointSaverHook(other, save_steps=3)
        hvd.estimator.train_and_evaluate(
            make_estimator(folder, chief_hooks=lambda: [steps, saver]),
            tfe.TrainSpec(share, max_steps=4),
            tfe.EvalSpec(whole, steps=None),
        )
        assert hvd.allgather_object(steps.made) == [4] + [0] * (hvd.size() - 1)
        assert (tf.train.latest_checkpoint(other) is not None) == (rank == 0)


def test_chief_hooks_of_hvd_tf_run_on_every_rank(folder, rank, size):
    made = []

    def chief_hooks():
        average = hvd.estimator.MetricAverageHook(["loss"], every_n_steps=1)
        made.append(average)
        return [
            hvd.BroadcastGlobalVariablesHook(0),
            hvd.estimator.EndTogetherHook(),
            average,
            hvd.estimator.LearningRateHook("rate", rates),
        ]

    rates = Rates()
    found, _ = hvd.estimator.train_and_evaluate(
        make_estimator(folder, chief_hooks=chief_hooks),
        tfe.TrainSpec(lambda: share().take(3 if rank == size - 1 else 9), max_steps=8),
        tfe.EvalSpec(whole, steps=None),
    )
    assert found["global_step"] == 3 and rates.steps[:3] == [0, 1, 2]
    everyones = hvd.allgather_object(made[0].averages)
    assert everyones == everyones[:1] * size


@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_on_rank_0_only_is_an_error_on_all(folder, rank, size, root):
    if size == 1:
        pytest.skip("needs ranks")
    hooks = [hvd.BroadcastGlobalVariablesHook(root)]
    estimator = make_estimator(folder, chief_hooks=lambda: hooks if rank == 0 else [])
    with pytest.raises(ValueError, match="the hooks differ .*BroadcastGlobalVariablesHook"):
        estimator.train(share, hooks=[hvd.BroadcastGlobalVariablesHook(0)], max_steps=4)


class Rates:
    """A constant learning rate. Keeps the steps that it was asked for."""

    def __init__(self):
        self.steps = []

    def __call__(self, step):
        self.steps.append(step)
        return 0.05


class Listener(v1.train.CheckpointSaverListener):
    """The global steps of the checkpoints."""

    def __init__(self):
        self.steps = []

    def after_save(self, session, global_step_value):
        self.steps.append(int(global_step_value))


def test_saving_listeners_are_passed_on_rank_0(folder, rank):
    estimator, listener = make_estimator(folder), Listener()
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    listeners = [listener] if rank == 0 else None
    estimator.train(share, hooks=hooks, max_steps=4, saving_listeners=listeners)
    assert listener.steps == ([0, 2, 4] if rank == 0 else [])
    if rank > 0:
        with pytest.raises(ValueError, match="CheckpointSaverHook to use saving_listeners"):
            estimator.train(share, steps=1, saving_listeners=[listener])


@pytest.mark.parametrize("configured", [True, False])
def test_train_knows_on_all_ranks_when_it_is_done(folder, rank, size, configured):
    """Estimator.train would return on rank 0, and leave the others alone."""

    def trained(**arguments):
        directory = folder if rank == 0 else tempfile.mkdtemp(dir=folder)  # as None does
        estimator = tfe.Estimator(model_fn, model_dir=directory, params={})
        estimator = make_estimator(folder) if configured else estimator
        steps, listener = Steps(), Listener()
        given = {"hooks": [steps], "saving_listeners": [listener], **arguments}
        assert hvd.estimator.train(estimator, share, **given) is estimator
        assert bool(listener.steps) == (rank == 0 and steps.made > 0)
        assert hvd.allgather_object(steps.made) == [steps.made] * size
        return steps.made, estimator.get_variable_value("weights") if rank == 0 else None

    assert trained(max_steps=3)[0] == 3
    made, weights = trained(max_steps=3)
    assert made == 0
    assert trained(max_steps=5)[0] == 2
    made, later = trained(steps=2)
    assert made == 2 and (rank > 0 or not np.array_equal(weights, later))


def test_train_ends_with_the_shortest_share(folder, rank, size):
    def uneven():
        return share().take(2 + rank)

    steps = Steps()
    hooks = [steps, hvd.estimator.EndTogetherHook()]
    hvd.estimator.train(make_estimator(folder), uneven, hooks=hooks)
    assert hvd.allgather_object(steps.made) == [2] * size


def test_train_ends_where_rank_0_does(folder, rank, size):
    """Another rank may have a directory of its own, with a later checkpoint."""
    own = f"{folder}/{rank}"
    estimator = tfe.Estimator(model_fn, model_dir=own, params={})
    steps = Steps()
    if rank > 0:
        with tf.Graph().as_default(), v1.Session() as session:
            step = v1.train.create_global_step()
            v1.get_variable("weights", [3, 1]), v1.get_variable("rate", [])
            session.run([v1.global_variables_initializer(), step.assign(9)])
            v1.train.Saver().save(session, f"{own}/model.ckpt", step)
    hvd.estimator.train(estimator, share, hooks=[steps], max_steps=3)
    assert hvd.allgather_object(steps.made) == [3] * size


@pytest.mark.parametrize("call", ["train", "train_and_evaluate"])
def test_an_input_that_fails_on_a_rank_may_be_tried_again(folder, rank, size, call):
    tries = []

    def fails_once():
        tries.append(1)
        if len(tries) == 1 and rank == size - 1:
            raise OSError("no file of mine")
        return share()

    def run():
        estimator = make_estimator(folder)
        if call == "train":
            hvd.estimator.train(estimator, fails_once, max_steps=3)
        else:
            train_spec = tfe.TrainSpec(fails_once, max_steps=3)
            hvd.estimator.train_and_evaluate(estimator, train_spec, tfe.EvalSpec(whole))

    failures = []
    while True:
        try:
            run()
            break
        except (OSError, ValueError) as error:
            failures.append(str(error))
            assert len(failures) < 3
    # The failed rank comes again, and finds the others elsewhere.
    assert all("no file of mine" in text or f"about to {call}" in text for text in failures)
    assert len(failures) == (2 if rank == size - 1 else 1)
    assert hvd.estimator.evaluate(make_estimator(folder), whole)["global_step"] == 3


@pytest.mark.parametrize("call", ["Estimator.train", "train", "train_and_evaluate"])
@pytest.mark.parametrize("together", [False, True])
def test_a_training_that_a_hook_has_ended_on_a_rank_may_be_tried_again(
    folder, rank, size, call, together
):
    """As NanTensorHook does: its error is none of a step, and the others are in the next one."""

    class Fails(v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            if rank == 0:
                raise v1.train.NanLossDuringTrainingError

    def run(hook):
        hooks = [hvd.BroadcastGlobalVariablesHook(0), hook]
        hooks += [hvd.estimator.EndTogetherHook()] if together else []
        estimator = make_estimator(folder)
        if call == "Estimator.train":
            estimator.train(share, hooks=hooks, max_steps=5)
        elif call == "train":
            hvd.estimator.train(estimator, share, hooks=hooks, max_steps=5)
        else:
            train_spec = tfe.TrainSpec(share, max_steps=5, hooks=hooks)
            eval_spec = tfe.EvalSpec(whole, throttle_secs=600)
            hvd.estimator.train_and_evaluate(estimator, train_spec, eval_spec)

    with pytest.raises((v1.train.NanLossDuringTrainingError, tf.errors.UnknownError)):
        run(Fails())
    steps = Steps()
    run(steps)
    assert steps.made > 0
    assert len(set(hvd.allgather_object(steps.made))) == 1


def test_predictions_within_a_training_end_when_they_like(folder, rank, size):
    class Predicts(v1.train.SessionRunHook):
        done = 0

        def after_run(self, run_context, run_values):
            self.done += 1
            if self.done == 2:
                hooks = [hvd.BroadcastGlobalVariablesHook(0)]
                for _ in estimator.predict(whole, hooks=hooks):
                    time.sleep(0.1 * (rank == 0))

    estimator = make_estimator(folder)
    hvd.estimator.train(estimator, share, hooks=[Predicts()], max_steps=4)
    assert hvd.estimator.evaluate(estimator, whole)["global_step"] == 4


@pytest.mark.parametrize("call", ["train", "train_and_evaluate"])
def test_a_checkpoint_of_objects(folder, rank, call):
    def with_objects(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        objects = tf.train.Checkpoint(**{v.op.name: v for v in v1.global_variables()})
        return spec._replace(scaffold=v1.train.Scaffold(saver=objects))

    for max_steps in (2, 4):
        config = hvd.estimator.run_config(folder, tf_random_seed=1, save_checkpoints_steps=2)
        estimator = tfe.Estimator(with_objects, config=config, params={})
        if call == "train":
            hvd.estimator.train(estimator, share, max_steps=max_steps)
        else:
            train_spec = tfe.TrainSpec(share, max_steps=max_steps)
            eval_spec = tfe.EvalSpec(whole, throttle_secs=0)
            results, _ = hvd.estimator.train_and_evaluate(estimator, train_spec, eval_spec)
        if rank == 0:
            assert tf.train.latest_checkpoint(folder).endswith(f"-{max_steps}")


@pytest.mark.parametrize("wrong", [{"max_steps": 0}, {"steps": 1, "max_steps": 2}])
def test_train_for_no_steps(folder, wrong):
    with pytest.raises(ValueError, match="train: .*give"):
        hvd.estimator.train(make_estimator(folder), share, **wrong)


def test_a_model_cannot_end_in_another_way_than_its_training(folder):
    """train_and_evaluate adds a hook, which would win without a word."""

    def with_hook(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        return spec._replace(training_hooks=[hvd.estimator.EndTogetherHook(when="last")])

    estimator = tfe.Estimator(with_hook, config=hvd.estimator.run_config(folder), params={})
    specs = tfe.TrainSpec(share, max_steps=2), tfe.EvalSpec(whole)
    with pytest.raises(ValueError, match=r"both EndTogetherHook\(first\) and EndTogetherHook\(l"):
        hvd.estimator.train_and_evaluate(estimator, *specs)


def test_train_with_other_arguments_on_a_rank(folder, rank):
    with pytest.raises(ValueError, match="train: max_steps.*Give the same on every rank"):
        hvd.estimator.train(make_estimator(folder), share, max_steps=3 + rank)


@pytest.mark.skipif(
    not hasattr(tf.data.experimental, "CheckpointInputPipelineHook"), reason="this one has none"
)
def test_a_place_in_the_data_is_saved_on_rank_0(folder, rank):
    estimator = make_estimator(folder)
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    if rank == 0:
        hooks.append(tf.data.experimental.CheckpointInputPipelineHook(estimator))
    else:
        with pytest.raises(ValueError, match="every_secs or every_steps should be"):
            tf.data.experimental.CheckpointInputPipelineHook(estimator)
    estimator.train(share, hooks=hooks, max_steps=4)
    assert (tf.train.latest_checkpoint(folder, "checkpoint_input") is not None) == (rank == 0)


@pytest.mark.parametrize("last_has_some", [True, False])
def test_every_rank_predicts_its_share_with_rank_0s_weights(folder, rank, size, last_has_some):
    estimator = make_estimator(folder)
    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    estimator.train(share, hooks=hooks, max_steps=3)
    records = RECORDS if last_has_some else size - 1

    def my_features():
        features = tf.data.Dataset.from_tensor_slices(FEATURES[:records])
        return features.shard(size, rank).batch(2)

    mine = list(estimator.predict(my_features, hooks=[hvd.BroadcastGlobalVariablesHook(0)]))
    weights = estimator.get_variable_value("weights") if rank == 0 else None
    weights = hvd.broadcast_object(weights, 0)
    assert len(mine) == len(range(rank, records, size))
    for found, features in zip(mine, FEATURES[rank:records:size]):
        np.testing.assert_allclose(found, features @ weights, rtol=1e-5)
