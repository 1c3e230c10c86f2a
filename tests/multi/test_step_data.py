# SPDX-License-Identifier: Apache-2.0
"""What a step waits for: the data that it uses, and none that only other session runs want."""

from __future__ import annotations

import tempfile

import pytest
import tensorflow as tf
from cases import needs_estimator

import hvd_tf as hvd
from hvd_tf._internal.step_data import data_of_step

RANKS = (2,)
IN_FULL = (1, 3)
TIMEOUT_S = 120

v1 = tf.compat.v1
tfe = hvd.estimator.tf_estimator


@pytest.fixture
def fresh_start():
    """What follows may have gradients again: this rank has told the others that it has none."""
    yield
    hvd.allgather_object(None)
    hvd.shutdown()
    hvd.init()


def read(elements):
    data = tf.data.Dataset.range(elements).map(lambda number: tf.cast(number, tf.float32))
    return v1.data.make_one_shot_iterator(data).get_next()


def update_of(loss, passes, op=hvd.Average):
    optimizer = hvd.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=passes, op=op
    )
    return optimizer.minimize(loss, v1.train.get_or_create_global_step())


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
@pytest.mark.parametrize("passes", [1, 2])
def test_of_two_iterators_that_of_the_gradients_counts(passes, op):
    with tf.Graph().as_default():
        used, other = read(9), read(3)
        weight = v1.get_variable("weight", [])
        update_of((weight - used) ** 2, passes, op)
        assert data_of_step() == [used.op]
        assert set(data_of_step([other.op])) == {used.op, other.op}


@pytest.mark.parametrize("passes", [1, 2])
def test_a_queue_behind_another_one_counts_alone(passes):
    """Each run of a dequeue takes an element."""
    with tf.Graph().as_default():
        record = v1.train.slice_input_producer([tf.range(100.0)], shuffle=False)[0]
        batch = v1.train.batch([record], 4)
        weight = v1.get_variable("weight", [])
        update_of(tf.reduce_mean((weight - batch) ** 2), passes)
        assert [operation.name for operation in data_of_step()] == ["batch"]


def test_where_nothing_tells_several_iterators_apart_none_counts():
    with tf.Graph().as_default():
        first = read(9)
        assert data_of_step() == [first.op]
        read(3)
        assert data_of_step() == []


def model_fn(features, labels, mode, params):
    weight = v1.get_variable("weight", [])
    loss = tf.reduce_mean((weight * features - labels) ** 2)
    if mode != "train":
        return tfe.EstimatorSpec(mode, loss=loss)
    tf.identity((weight - read(3)) ** 2, "loss_of_a_validation")
    return tfe.EstimatorSpec(mode, loss=loss, train_op=update_of(loss, params["passes"]))


@needs_estimator
@pytest.mark.usefixtures("fresh_start")
@pytest.mark.parametrize("passes", [1, 2])
def test_train_and_evaluate_reads_no_other_iterator(passes):
    def ones():
        return tf.data.Dataset.from_tensors((1.0, 2.0)).repeat(100).batch(4)

    with tempfile.TemporaryDirectory() as folder:
        config = hvd.estimator.run_config(folder)
        results, _ = hvd.estimator.train_and_evaluate(
            tfe.Estimator(model_fn, config=config, params={"passes": passes}),
            tfe.TrainSpec(ones, max_steps=8),
            tfe.EvalSpec(ones, steps=2),
        )
    assert results["global_step"] == 8
