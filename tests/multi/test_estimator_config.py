# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator's run_config, model_dir, scaling and schedules: each rank against numbers."""

from __future__ import annotations

import json
import math
import os
import stat

import fake_gpu
import numpy as np
import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf._internal.compat.estimator import provide_tf_estimator
from hvd_tf.estimator.configuration import rank_seed, threads_per_rank

RANKS = (1, 3)

v1 = tf.compat.v1
toolkit = hvd_tf.estimator


def has_estimator():
    try:
        return bool(toolkit.tf_estimator.Estimator)
    except ImportError:
        return False


needs_estimator = pytest.mark.skipif(not has_estimator(), reason="no tensorflow-estimator here")


# ---- tf.estimator ------------------------------------------------------------------------------


def test_tf_estimator_is_there_or_says_how_to_install_it(monkeypatch):
    if tf.__version__.startswith("2.15."):
        assert toolkit.tf_estimator.Estimator is tf.estimator.Estimator
        assert toolkit.tf_estimator_v1.Estimator is v1.estimator.Estimator
        provide_tf_estimator()
        return
    monkeypatch.delattr(tf, "estimator", raising=False)  # other files of this job ask for it
    if has_estimator():
        names = "Estimator RunConfig TrainSpec EvalSpec ModeKeys EstimatorSpec train_and_evaluate"
        names += " export DNNClassifier DNNLinearCombinedClassifier WarmStartSettings"
        for module in (toolkit.tf_estimator, toolkit.tf_estimator_v1):
            assert all(hasattr(module, name) for name in names.split())
        assert not hasattr(tf, "estimator")  # TensorFlow is as it was, until somebody asks
        provide_tf_estimator()
        assert tf.estimator.Estimator is toolkit.tf_estimator.Estimator
    else:
        with pytest.raises(ImportError, match="pip install --no-deps tensorflow-estimator==2.15.0"):
            _ = toolkit.tf_estimator.Estimator
        with pytest.raises(ImportError, match="has no tf.estimator"):
            toolkit.run_config()


# ---- run_config --------------------------------------------------------------------------------


@needs_estimator
def test_only_rank_0_writes(rank, size):
    config = toolkit.run_config(save_checkpoints_steps=7, keep_checkpoint_max=2)
    assert isinstance(config, toolkit.tf_estimator.RunConfig)
    assert config.keep_checkpoint_max == 2 and config.model_dir is None
    written = [config.save_checkpoints_steps, config.save_summary_steps]
    written.append(config.log_step_count_steps)
    assert written == ([7, 100, 100] if rank == 0 else [None] * 3)
    assert config.save_checkpoints_secs is None
    assert toolkit.run_config().save_checkpoints_secs == (600 if rank == 0 else None)


@needs_estimator
def test_threads_and_what_the_user_has_set(size):
    cores = len(os.sched_getaffinity(0))
    config = toolkit.run_config().session_config
    bound = os.sched_getaffinity(0) < os.sched_getaffinity(os.getppid())
    share = cores if bound else max(1, cores // size)
    assert config.intra_op_parallelism_threads == config.inter_op_parallelism_threads == share
    assert config.allow_soft_placement
    assert config.gpu_options.visible_device_list == ("0" if fake_gpu.IS_REAL else "")
    given = v1.ConfigProto(intra_op_parallelism_threads=77, log_device_placement=True)
    config = toolkit.run_config(session_config=given).session_config
    assert config.intra_op_parallelism_threads == 77 and config.log_device_placement
    assert config.inter_op_parallelism_threads == share
    assert given.inter_op_parallelism_threads == 0  # theirs is as it was


def test_threads_per_rank():
    machine = set(range(8))
    assert threads_per_rank(machine, machine, 2) == 4
    assert threads_per_rank(machine, machine, 3) == 2
    assert threads_per_rank(machine, machine, 16) == 1
    assert threads_per_rank(machine, {2, 3}, 4) == 2  # bound by the launcher
    assert threads_per_rank({2, 3}, {2, 3}, 2) == 1  # a container's share


@needs_estimator
def test_seeds(rank, size):
    assert toolkit.run_config().tf_random_seed is None
    seed = toolkit.run_config(tf_random_seed=11).tf_random_seed
    seeds = hvd_tf.allgather_object(seed)
    assert seeds[0] == 11 and len(set(seeds)) == size
    assert seeds == [rank_seed(11, peer) for peer in range(size)]
    assert rank_seed(11, 1) != rank_seed(12, 1) != rank_seed(-12, 1)
    assert 0 <= rank_seed(2**31 - 1, 1000) < 2**31


@needs_estimator
def test_tf_config_is_ignored_and_rank_0_says_so(rank, monkeypatch, capfd):
    cluster = {"chief": ["secret-host:1"], "ps": ["secret-host:2"], "worker": ["secret-host:3"]}
    text = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    monkeypatch.setenv("TF_CONFIG", text)
    config = toolkit.run_config(model_dir="somewhere")
    assert not config.cluster_spec and config.is_chief and config.num_ps_replicas == 0
    assert os.environ["TF_CONFIG"] == text
    said = capfd.readouterr().err
    if rank == 0:
        assert "TF_CONFIG (1 chief, 1 ps, 1 worker) is ignored by run_config" in said
        assert "secret-host" not in said
    else:
        assert "TF_CONFIG" not in said
    monkeypatch.setenv("TF_CONFIG", "no json")
    assert not toolkit.run_config().cluster_spec
    assert ("TF_CONFIG (not understood)" in capfd.readouterr().err) == (rank == 0)


def test_strategies_are_refused():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
        with pytest.raises(ValueError, match=f"{name}: hvd_tf distributes.*leave {name} out"):
            toolkit.run_config(**{name: strategy})
    with strategy.scope(), pytest.raises(ValueError, match="scope of a tf.distribute strategy"):
        toolkit.run_config()


@needs_estimator
def test_tf_estimators_train_and_evaluate_names_ours(size, tmp_path):
    def nothing():
        raise AssertionError("never called")

    names = toolkit.tf_estimator
    config = toolkit.run_config(model_dir=str(tmp_path))
    estimator = names.Estimator(lambda features, labels, mode: None, config=config)
    specs = names.TrainSpec(nothing, max_steps=1), names.EvalSpec(nothing)
    if size > 1:
        with pytest.raises(ValueError, match=r"call hvd_tf\.estimator\.train_and_evaluate"):
            names.train_and_evaluate(estimator, *specs)
    else:
        with pytest.raises(AssertionError, match="never called"):
            names.train_and_evaluate(estimator, *specs)


# ---- model_dir ---------------------------------------------------------------------------------


def test_model_dir(rank, size, tmp_path):
    path = hvd_tf.broadcast_object(str(tmp_path / "model"))
    mine = toolkit.model_dir(path)
    places = hvd_tf.allgather_object(mine)
    assert len(set(places)) == size and places[0] == path
    assert toolkit.model_dir(path) == mine
    if rank > 0:
        assert stat.S_IMODE(os.stat(mine).st_mode) == 0o700 and not os.listdir(mine)
        assert toolkit.model_dir("gs://bucket/model") not in (mine, "gs://bucket/model")
    if has_estimator():
        assert toolkit.run_config(model_dir=path).model_dir == mine
    with pytest.raises(ValueError, match="the path is empty"):
        toolkit.model_dir("")


# ---- scaling -----------------------------------------------------------------------------------


def test_scale_steps(size):
    for steps in (1, 2, size, 1000, 1001):
        assert toolkit.scale_steps(steps) == max(1, steps // size)
    assert toolkit.scale_steps(None) is None
    for wrong in (0, -1, 2.5, True, "3"):
        with pytest.raises(ValueError, match="steps must be an integer of 1 or more"):
            toolkit.scale_steps(wrong)


@pytest.mark.parametrize("rule", ["linear", "sqrt", "none"])
def test_scale_learning_rate(size, rule):
    expected = 0.1 * {"linear": size, "sqrt": math.sqrt(size), "none": 1}[rule]
    np.testing.assert_allclose(toolkit.scale_learning_rate(0.1, rule), expected, rtol=1e-15)
    from_function = toolkit.scale_learning_rate(lambda: 0.1, rule)()
    np.testing.assert_allclose(from_function, expected, rtol=1e-15)
    tensor = toolkit.scale_learning_rate(tf.constant(0.1, tf.float64), rule)
    assert tensor.dtype == tf.float64
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-15)
    from_function = toolkit.scale_learning_rate(lambda: tf.constant(0.1, tf.float64), rule)()
    np.testing.assert_allclose(from_function.numpy(), expected, rtol=1e-15)


def test_scale_learning_rate_refuses():
    with pytest.raises(ValueError, match='rule must be one of "linear", "sqrt", "none"'):
        toolkit.scale_learning_rate(0.1, "quadratic")
    for wrong in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="learning_rate must be positive"):
            toolkit.scale_learning_rate(wrong)


# ---- schedules ---------------------------------------------------------------------------------


def in_graph(schedule, steps):
    """The learning rate at each of these global steps."""
    with tf.Graph().as_default(), v1.Session() as session:
        global_step = v1.train.get_or_create_global_step()
        rate = schedule(None)
        assert rate.dtype == tf.float64 and rate.shape == []
        session.run(v1.global_variables_initializer())
        new_step = v1.placeholder(tf.int64, [])
        assign = v1.assign(global_step, new_step)
        values = []
        for step in steps:
            session.run(assign.op, {new_step: step})
            values.append(session.run(rate))
    return values


def check_schedule(schedule, expected, steps):
    """`schedule` of a learning rate and a global step, in a graph and with numbers."""
    want = [expected(step) for step in steps]
    got = in_graph(lambda step: schedule(tf.constant(0.8, tf.float64), step), steps)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    numbers = [schedule(0.8, step) for step in steps]
    assert all(isinstance(number, float) for number in numbers)
    np.testing.assert_allclose(numbers, want, rtol=1e-14)


def test_warm_up(size):
    check_schedule(
        lambda rate, step: toolkit.warm_up(rate, 10, step),
        lambda step: 0.8 / size + 0.8 * (1 - 1 / size) * min(step, 10) / 10,
        [0, 1, 5, 9, 10, 11, 1000, 2**24 + 1],
    )
    check_schedule(lambda rate, step: toolkit.warm_up(rate, 0, step), lambda step: 0.8, [0, 1])


def test_piecewise():
    pieces = [(2, 1.0), (5, 0.1), (9, lambda step: 0.3**step)]

    def expected(step):
        return 0.8 * (0.3**step if step >= 9 else 0.1 if step >= 5 else 1.0)

    check_schedule(lambda rate, step: toolkit.piecewise(rate, pieces, step), expected, range(0, 12))


def test_schedules_chain(size):
    """Warm-up of a schedule of TensorFlow's own."""

    def schedule(step):
        cosine = v1.train.cosine_decay(0.8, v1.train.get_global_step(), 40)  # float32
        return tf.cast(toolkit.warm_up(cosine, 10, step), tf.float64)

    steps = [0, 3, 10, 25, 40]
    want = [
        0.8 * 0.5 * (1 + math.cos(math.pi * step / 40))
        * (1 + (size - 1) * min(step, 10) / 10) / size
        for step in steps
    ]  # fmt: skip
    np.testing.assert_allclose(in_graph(schedule, steps), want, rtol=1e-6, atol=1e-7)


def test_schedules_refuse():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="warm_up: .* no global step"):
        toolkit.warm_up(0.1, 5)
    with pytest.raises(ValueError, match="warm_up: steps must be 0 or more"):
        toolkit.warm_up(0.1, -1, 0)
    with pytest.raises(ValueError, match="warm_up: global_step must be 0 or more"):
        toolkit.warm_up(0.1, 5, -3)
    for pieces in ([], [(5, 1.0), (5, 0.1)], [(5, 1.0), (2, 0.1)]):
        with pytest.raises(ValueError, match="piecewise: pieces must be"):
            toolkit.piecewise(0.1, pieces, 0)
