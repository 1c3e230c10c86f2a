# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.estimator.evaluate: the results of one process, whatever the number of ranks."""

from __future__ import annotations

import functools
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (1, 3, 4)
TIMEOUT_S = 400

try:
    hvd.estimator.provide_tf_estimator()
except ImportError:
    pass  # then the tests are skipped

v1 = tf.compat.v1
pytestmark = pytest.mark.skipif(not hasattr(tf, "estimator"), reason="tf.estimator is not there")

RECORDS = 101  # no multiple of batches or ranks
GENERATOR = np.random.default_rng(3)
FEATURES = GENERATOR.standard_normal((RECORDS, 4)).astype(np.float32)
LABELS = (FEATURES @ [1.0, -2.0, 0.5, 0.0] + GENERATOR.standard_normal(RECORDS) > 0).astype(
    np.int64
)


def additive_metrics(labels, scores, losses):
    guesses = tf.cast(scores > 0.5, tf.int64)
    return {
        "accuracy": v1.metrics.accuracy(labels, guesses),
        "precision": v1.metrics.precision(labels, guesses),
        "recall": v1.metrics.recall(labels, guesses),
        "auc": v1.metrics.auc(labels, scores, num_thresholds=50),
        "mean_iou": v1.metrics.mean_iou(labels, guesses, 2),
        "rmse": v1.metrics.root_mean_squared_error(tf.cast(labels, tf.float32), scores),
        "average_loss": v1.metrics.mean(losses),
        "records": records_of(losses),
    }


def records_of(losses):
    """A user's own metric, of an integer that begins at 1000."""
    count = v1.get_local_variable("records", initializer=np.int64(1000))
    return count.read_value(), v1.assign_add(count, tf.size(losses, tf.int64)).op


def largest_of(scores):
    """A metric that cannot be summed."""
    largest = v1.get_local_variable("largest", initializer=np.float32(0))
    return largest.read_value(), v1.assign(largest, tf.maximum(largest, tf.reduce_max(scores)))


def model_fn(features, labels, mode, params):
    weights = v1.get_variable("weights", [4, 1], initializer=v1.random_normal_initializer())
    logits = tf.squeeze(tf.matmul(features, weights), 1)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.cast(labels, tf.float32), logits=logits
    )
    loss = tf.reduce_mean(losses)
    scores = tf.sigmoid(logits)
    metrics = additive_metrics(labels, scores, losses) if mode == "eval" else None
    if mode == "eval" and params.get("largest"):
        metrics["largest"] = largest_of(scores)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train, eval_metric_ops=metrics)


def dataset(batch=8, records=RECORDS):
    return tf.data.Dataset.from_tensor_slices((FEATURES[:records], LABELS[:records])).batch(batch)


def make_estimator(directory, **params):
    config = tf.estimator.RunConfig(tf_random_seed=7 + hvd.rank(), save_summary_steps=None)
    return tf.estimator.Estimator(model_fn, model_dir=directory, config=config, params=params)


@pytest.fixture(scope="module")
def trained():
    """A folder that has a checkpoint on rank 0 only, of a model stopped at step 5."""
    with tempfile.TemporaryDirectory() as directory:
        if hvd.rank() == 0:
            make_estimator(directory).train(lambda: dataset().repeat(), steps=5)
        yield directory


def expected_of(directory, input_fn, steps=None, **params):
    """What plain tf.estimator finds, on rank 0, for all ranks."""
    results = None
    if hvd.rank() == 0:
        results = make_estimator(directory, **params).evaluate(input_fn, steps=steps, name="plain")
        results["loss"] = results["average_loss"]  # over examples
    return hvd.broadcast_object(results, 0)


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("batch", "steps"), [(8, None), (8, 5), (1, 2), (101, None), (7, 1)])
def test_results_are_those_of_one_process(trained, batch, steps):
    estimator = make_estimator(trained)
    found = hvd.estimator.evaluate(estimator, lambda: dataset(batch), steps=steps)
    assert_same(found, expected_of(trained, lambda: dataset(batch), steps))
    assert found["global_step"] == 5
    assert found["records"] == 1000 + min(RECORDS, batch * (steps or RECORDS))
    everywhere = hvd.allgather_object(found)
    assert all(other == everywhere[0] for other in everywhere)  # to the last bit


def test_shuffled_and_parallel_input_counts_every_record_once(trained):
    def input_fn():
        indices = tf.data.Dataset.range(RECORDS).shuffle(RECORDS)
        pick = lambda i: (tf.gather(FEATURES, i), tf.gather(LABELS, i))  # noqa: E731
        return indices.map(pick, num_parallel_calls=4).batch(8).prefetch(2)

    found = hvd.estimator.evaluate(make_estimator(trained), input_fn)
    assert_same(found, expected_of(trained, lambda: dataset(8)))


@pytest.mark.parametrize("by", ["hvd.data.shard", "Dataset.shard"])
def test_shares_are_not_shared_again(trained, by):
    def input_fn():
        records = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        if by == "hvd.data.shard":
            return hvd.data.shard(records, 8, uneven="keep").prefetch(1)
        return records.shard(hvd.size(), hvd.rank()).batch(8)

    found = hvd.estimator.evaluate(make_estimator(trained), input_fn)
    assert_same(found, expected_of(trained, lambda: dataset(8)))
    for steps in (2 * hvd.size(), 2 * hvd.size() + 1):
        found = hvd.estimator.evaluate(make_estimator(trained), input_fn, steps=steps)
        assert found["records"] == 1000 + 8 * steps


def test_a_part_of_the_records_is_no_share(trained):
    """Each is evaluated once, though every rank reads the same part."""

    def input_fn():
        records = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return records.shard(10, 9).batch(2)

    found = hvd.estimator.evaluate(make_estimator(trained), input_fn)
    assert_same(found, expected_of(trained, input_fn))


def test_a_share_of_the_older_datasets(trained):
    def input_fn():
        records = v1.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return records.shard(hvd.size(), hvd.rank()).batch(8)

    found = hvd.estimator.evaluate(make_estimator(trained), input_fn)
    assert_same(found, expected_of(trained, lambda: dataset(8)))


def test_a_share_that_drops_or_repeats_records_is_refused(trained):
    def input_fn(**arguments):
        records = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
        return hvd.data.shard(records, 8, **arguments).prefetch(1)

    estimator = make_estimator(trained)
    for arguments in ({}, {"uneven": "repeat"}, {"uneven": "keep", "drop_remainder": True}):
        if hvd.size() == 1 and not arguments.get("drop_remainder"):
            found = hvd.estimator.evaluate(estimator, functools.partial(input_fn, **arguments))
            assert found["records"] == 1000 + RECORDS
            continue
        with pytest.raises(ValueError, match='drops or repeats records .* pass uneven="keep"'):
            hvd.estimator.evaluate(estimator, functools.partial(input_fn, **arguments))


def test_a_metric_that_cannot_be_summed_is_evaluated_on_rank_0(trained, caplog):
    estimator = make_estimator(trained, largest=True)
    with caplog.at_level("WARNING", logger="tensorflow"):
        found = hvd.estimator.evaluate(estimator, dataset)
    assert_same(found, expected_of(trained, dataset, largest=True))
    warnings = [text for text in caplog.messages if "rank 0 evaluates alone" in text]
    assert len(warnings) == (hvd.rank() == 0 and hvd.size() > 1)
    assert all("'largest' cannot be summed" in text for text in warnings)


@pytest.mark.parametrize("kind", ["tensors", "any order"])
def test_input_that_cannot_be_shared_is_evaluated_on_rank_0(trained, kind, caplog):
    def input_fn():
        if kind == "tensors":
            return v1.data.make_one_shot_iterator(dataset()).get_next()
        return dataset().map(lambda *one: one, num_parallel_calls=2, deterministic=False)

    with caplog.at_level("WARNING", logger="tensorflow"):
        found = hvd.estimator.evaluate(make_estimator(trained), input_fn, steps=13)
    assert_same(found, expected_of(trained, lambda: dataset(8), steps=13))
    if hvd.size() > 1 and hvd.rank() == 0:
        assert any(
            "input_fn returns tensors" in t or "deterministic=False" in t for t in caplog.messages
        )


@pytest.mark.skipif(not tf.__version__.startswith("2.15."), reason="canned ones need Keras 2")
def test_canned_estimator(trained):
    del trained
    columns = [tf.feature_column.numeric_column("x", shape=[4])]
    config = tf.estimator.RunConfig(tf_random_seed=1)

    def input_fn():
        return dataset().map(lambda x, y: ({"x": x}, y))

    with tempfile.TemporaryDirectory() as directory:
        estimator = tf.estimator.DNNClassifier([8], columns, model_dir=directory, config=config)
        expected = None
        if hvd.rank() == 0:
            estimator.train(lambda: input_fn().repeat(), steps=3)
            expected = estimator.evaluate(input_fn)
            expected["loss"] = expected["average_loss"]
        expected = hvd.broadcast_object(expected, 0)
        assert_same(hvd.estimator.evaluate(estimator, input_fn), expected)


def test_newly_initialised_weights_are_those_of_rank_0():
    with tempfile.TemporaryDirectory() as directory:
        found = hvd.estimator.evaluate(make_estimator(directory), dataset)
    assert found["global_step"] == 0
    assert len({results["loss"] for results in hvd.allgather_object(found)}) == 1


def test_rank_0_writes_the_summary(trained):
    hvd.estimator.evaluate(make_estimator(trained), dataset, name="held_out")
    folder = os.path.join(trained, "eval_held_out")
    assert os.path.isdir(folder) == (hvd.rank() == 0)
    if hvd.rank() == 0:
        (file,) = [os.path.join(folder, name) for name in os.listdir(folder)]
        tags = {
            value.tag for event in v1.train.summary_iterator(file) for value in event.summary.value
        }
        assert {"loss", "auc", "accuracy"} <= tags


# --- What goes wrong ----------------------------------------------------------


@pytest.mark.parametrize("failing", [0, -1])
def test_an_error_of_one_rank_s_input_is_raised_on_all(trained, failing):
    failing %= hvd.size()

    def input_fn():
        if hvd.rank() == failing:
            raise FileNotFoundError("no such shard")
        return dataset()

    own = hvd.rank() == failing
    with pytest.raises(FileNotFoundError if own else RuntimeError, match="no such shard"):
        hvd.estimator.evaluate(make_estimator(trained), input_fn)


def test_an_error_before_a_rank_asks_for_its_share_is_raised_on_all(trained):
    def input_fn():
        if hvd.rank() == 0:
            raise FileNotFoundError("no such shard")
        return hvd.data.shard(dataset().unbatch(), 8, uneven="keep")  # asks the other ranks

    own = hvd.rank() == 0
    errors = FileNotFoundError if own else (RuntimeError, tf.errors.UnknownError)
    with pytest.raises(errors, match="no such shard"):
        hvd.estimator.evaluate(make_estimator(trained), input_fn)
    # And sharding works again.
    share = hvd.data.shard(tf.data.Dataset.range(6 * hvd.size()), uneven="keep")
    assert len(list(share)) == 6


@pytest.mark.skipif("hvd.size() == 1", reason="one rank sees all batches")
def test_a_share_cannot_be_evaluated_by_rank_0_alone(trained):
    estimator = make_estimator(trained, largest=True)
    with pytest.raises(ValueError, match="'largest' cannot be summed.*input_fn gives each rank"):
        hvd.estimator.evaluate(estimator, lambda: dataset().shard(hvd.size(), hvd.rank()))


@pytest.mark.skipif("hvd.size() == 1", reason="one rank cannot differ")
def test_metrics_of_some_ranks_only_are_an_error_on_all(trained):
    last = hvd.size() - 1
    estimator = make_estimator(trained, largest=hvd.rank() == last)
    words = f"list of metrics differs: .* on rank 0, .*'largest'.* on rank {last}"
    with pytest.raises(ValueError, match=words):
        hvd.estimator.evaluate(estimator, dataset)


def test_an_error_amid_one_rank_s_share_is_raised_on_all(trained):
    last = hvd.size() - 1

    def input_fn():
        def check(x, y):
            def bad(array):
                if hvd.rank() == last:
                    raise ValueError("corrupt record")
                return array

            return tf.ensure_shape(tf.numpy_function(bad, [x], tf.float32), [None, 4]), y

        return dataset().map(check)

    own = hvd.rank() == last
    with pytest.raises(tf.errors.OpError if own else RuntimeError, match="corrupt record"):
        hvd.estimator.evaluate(make_estimator(trained), input_fn)
    # And the ranks still understand each other.
    assert hvd.estimator.evaluate(make_estimator(trained), dataset)["global_step"] == 5


def test_a_checkpoint_of_another_model_is_an_error_on_all(trained):
    def other_model(features, labels, mode):
        weights = v1.get_variable("other", [4, 2])
        loss = tf.reduce_mean(tf.matmul(features, weights))
        return tf.estimator.EstimatorSpec(mode, loss=loss)

    estimator = tf.estimator.Estimator(other_model, model_dir=trained)
    own = hvd.rank() == 0
    with pytest.raises(tf.errors.OpError if own else RuntimeError, match="other"):
        hvd.estimator.evaluate(estimator, dataset)


def test_arguments_are_checked_on_all(trained):
    estimator = make_estimator(trained)
    with pytest.raises(ValueError, match="steps is 0; give at least 1"):
        hvd.estimator.evaluate(estimator, dataset, steps=0)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="steps differs: 3 on rank 0, 4 on rank 1"):
            hvd.estimator.evaluate(estimator, dataset, steps=3 + hvd.rank())
    with pytest.raises(
        ValueError, match="no checkpoint '.*missing', as checkpoint_path says on rank 0"
    ):
        hvd.estimator.evaluate(estimator, dataset, checkpoint_path=trained + "/missing")
