# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator.shard_input_fn: one process's input_fn, shared out among ranks."""

from __future__ import annotations

import functools
import inspect
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (3,)
IN_FULL = (1,)

try:
    hvd.estimator.provide_tf_estimator()
except ImportError:
    pass  # then what needs it is skipped

v1 = tf.compat.v1
needs_estimator = pytest.mark.skipif(
    not hasattr(tf, "estimator"), reason="tf.estimator is not there"
)

BATCH = 4
BATCHES = 13  # no multiple of the ranks


class Batches(v1.train.SessionRunHook):
    """The batches that this rank trains on."""

    def __init__(self):
        self.seen = []

    def before_run(self, run_context):
        return v1.train.SessionRunArgs("features:0")

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results.tolist())


def model_fn(features, labels, mode, params):
    del labels, params
    features = tf.identity(tf.cast(features, tf.float32), "features")
    weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean((weight - features) ** 2)
    if mode == "eval":
        metrics = {"records": v1.metrics.mean(features)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.01))
    train = optimizer.minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def shuffled_batches(params):
    """As written for one process: a shuffle without a seed."""
    dataset = tf.data.Dataset.range(BATCH * BATCHES).shuffle(20)
    return dataset.repeat(params["epochs"]).batch(BATCH)


@pytest.fixture
def estimator():
    with tempfile.TemporaryDirectory() as directory:
        config = hvd.estimator.run_config(model_dir=directory, tf_random_seed=3)
        yield tf.estimator.Estimator(model_fn, config=config, params={"epochs": 2})


def trained_on(estimator, input_fn):
    """All ranks' batches, in the order of one process."""
    batches = Batches()
    estimator.train(input_fn, hooks=[hvd.BroadcastGlobalVariablesHook(0), batches])
    of_ranks = hvd.allgather_object(batches.seen)
    assert len({len(seen) for seen in of_ranks}) == 1
    return [batch for step in zip(*of_ranks) for batch in step]


@needs_estimator
def test_ranks_take_the_batches_of_one_process_in_turn(estimator, size):
    seen = trained_on(estimator, hvd.estimator.shard_input_fn(shuffled_batches))
    # What one process with rank 0's seed sees, in a graph like Estimator's.
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        v1.train.create_global_step()
        following = v1.data.make_one_shot_iterator(shuffled_batches({"epochs": 2})).get_next()
        alone = [session.run(following).tolist() for _ in range(2 * BATCHES)]
    assert sorted(sum(alone, [])) == sorted(2 * list(range(BATCH * BATCHES)))
    assert alone != sorted(alone)  # shuffled
    steps = 2 * BATCHES // size
    assert seen == alone[: steps * size]


@needs_estimator
def test_records_are_batched_by_rank(estimator, size):
    def input_fn(mode, config):
        assert mode == "train"
        assert config.tf_random_seed is not None
        return tf.data.Dataset.range(BATCH * BATCHES)

    wrapped = hvd.estimator.shard_input_fn(input_fn, BATCH, shuffle_buffer=100, seed=5, epochs=2)
    seen = trained_on(estimator, wrapped)
    dropped = BATCH * BATCHES % size
    for epoch in (seen[: len(seen) // 2], seen[len(seen) // 2 :]):
        records = sum(epoch, [])
        assert len(set(records)) == len(records) == BATCH * BATCHES - dropped
    assert seen[: len(seen) // 2] != seen[len(seen) // 2 :]


@needs_estimator
def test_evaluation_takes_the_whole(estimator):
    trained_on(estimator, hvd.estimator.shard_input_fn(shuffled_batches))
    found = hvd.estimator.evaluate(estimator, hvd.estimator.shard_input_fn(shuffled_batches))
    assert found["records"] == pytest.approx(np.mean(range(BATCH * BATCHES)), rel=1e-6)


@needs_estimator
def test_what_a_partial_has_bound_stays(estimator):
    def input_fn(params, offset, mode):
        assert mode == ("eval" if offset else "train")
        return tf.data.Dataset.range(offset, offset + 12).repeat(params["epochs"]).batch(BATCH)

    once = functools.partial(input_fn, params={"epochs": 1}, offset=0)
    seen = trained_on(estimator, hvd.estimator.shard_input_fn(once))
    assert sorted(sum(seen, [])) == list(range(12))
    # The estimator's params say 2.
    again = functools.partial(input_fn, offset=100)
    found = hvd.estimator.evaluate(estimator, again)
    assert found["records"] == pytest.approx(np.mean(range(100, 112)), rel=1e-6)
    bound = functools.partial(again, params={"epochs": 1})
    assert hvd.estimator.evaluate(estimator, bound)["records"] == found["records"]


def test_a_wrapped_partial_has_the_parameters_that_are_left():
    def input_fn(mode, params, config=None):
        assert (mode, params) == ("train", {"epochs": 3})
        return tf.data.Dataset.range(12)

    for bound in (functools.partial(input_fn, mode="train"), functools.partial(input_fn, "train")):
        wrapped = hvd.estimator.shard_input_fn(bound)
        assert inspect.getfullargspec(wrapped).args == ["params", "config"]
        wrapped(params={"epochs": 3})


def test_dropout_keeps_a_seed_of_its_own(rank):
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(100 + rank)
        wrapped = hvd.estimator.shard_input_fn(lambda: tf.data.Dataset.range(12).shuffle(3))
        wrapped()
        assert graph.seed == 100 + rank


def test_an_input_context_of_one_pipeline_shards_nothing(size):
    def input_fn(input_context):
        return tf.data.Dataset.range(12).shard(
            input_context.num_input_pipelines, input_context.input_pipeline_id
        )

    dataset = hvd.estimator.shard_input_fn(input_fn)(tf.distribute.InputContext())
    assert len(list(dataset)) == 12 // size


def test_what_is_no_dataset_is_refused_on_all():
    wrapped = hvd.estimator.shard_input_fn(lambda: tf.constant(1))
    with pytest.raises((ValueError, RuntimeError), match="returns a tf.data.Dataset; this one"):
        wrapped()
    with pytest.raises(TypeError, match="must be a function"):
        hvd.estimator.shard_input_fn(tf.data.Dataset.range(3))


def test_an_error_of_one_rank_is_raised_on_all(rank, size):
    def input_fn():
        if rank == size - 1:
            raise FileNotFoundError("no such file")
        return tf.data.Dataset.range(12)

    wrapped = hvd.estimator.shard_input_fn(input_fn)
    own = rank == size - 1
    with pytest.raises(FileNotFoundError if own else RuntimeError, match="no such file"):
        wrapped()
    assert (
        len(list(hvd.estimator.shard_input_fn(lambda: tf.data.Dataset.range(12))())) == 12 // size
    )


def test_a_dataset_in_any_order_is_refused():
    def input_fn():
        return tf.data.Dataset.range(12).map(lambda x: x, num_parallel_calls=2, deterministic=False)

    with pytest.raises(ValueError, match="ParallelMapDataset with deterministic=False"):
        hvd.estimator.shard_input_fn(input_fn)()
