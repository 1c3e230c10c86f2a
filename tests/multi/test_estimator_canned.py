# SPDX-License-Identifier: Apache-2.0
"""Canned Estimators with wrapped optimizers train like one process on the joint batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

RANKS = (2,)

v1 = tf.compat.v1
train = v1.train
toolkit = hvd_tf.estimator
BATCH = 6  # per rank
STEPS = 8
WORDS = [f"word{i}" for i in range(12)]


@pytest.fixture(scope="module")
def canned():
    """tf.compat.v1.estimator: its Estimators take optimizers of tf.compat.v1.train."""
    try:
        _ = toolkit.tf_estimator_v1.Estimator
    except ImportError as error:
        pytest.skip(str(error))
    if not hasattr(v1.keras.layers, "DenseFeatures"):
        pytest.skip("canned Estimators need Keras 2: tf_keras, and TF_USE_LEGACY_KERAS=1")
    return toolkit.tf_estimator_v1


def batch(step, rank):
    generator = np.random.default_rng([step, rank])
    number = generator.standard_normal((BATCH, 2)).astype(np.float32)
    word = generator.choice(WORDS, BATCH)
    label = (number[:, 0] + np.isin(word, WORDS[:5]) > 0.3).astype(np.int64)
    return {"number": number, "word": word}, label


def joint_batch(step, size):
    parts = [batch(step, rank) for rank in range(size)]
    features = {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}
    return features, np.concatenate([part[1] for part in parts])


def input_fn(batch_of_step):
    """Batches for ever, by the step."""
    signature = (
        {
            "number": tf.TensorSpec([None, 2], tf.float32),
            "word": tf.TensorSpec([None], tf.string),
        },
        tf.TensorSpec([None], tf.int64),
    )

    def batches():
        step = 0
        while True:
            yield batch_of_step(step)
            step += 1

    return lambda: tf.data.Dataset.from_generator(batches, output_signature=signature)


def columns():
    number = tf.feature_column.numeric_column("number", [2])
    word = tf.feature_column.categorical_column_with_vocabulary_list("word", WORDS)
    return [number, word], [number, tf.feature_column.embedding_column(word, 3)]


def combined(canned, wrap, **arguments):
    """Wide and deep: two optimizers, each for its own variables."""
    wide, deep = columns()
    return canned.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        linear_optimizer=wrap(lambda: train.FtrlOptimizer(0.1)),
        dnn_feature_columns=deep,
        dnn_hidden_units=[5],
        dnn_optimizer=wrap(lambda: train.AdagradOptimizer(0.1)),
        loss_reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
        **arguments,
    )


def dnn(canned, wrap, **arguments):
    return canned.DNNClassifier(
        [5],
        columns()[1],
        optimizer=wrap(lambda: train.AdamOptimizer(0.01)),
        loss_reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
        **arguments,
    )


def linear(canned, wrap, **arguments):
    return canned.LinearClassifier(
        columns()[0],
        optimizer=wrap(lambda: train.MomentumOptimizer(0.05, 0.9)),
        loss_reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
        **arguments,
    )


def of_tf_2(name, optimizers, **arguments):
    """An Estimator of TF 2, whose optimizers are of Keras. By name: the canned ones ask for it."""
    return getattr(toolkit.tf_estimator, name)(
        loss_reduction=tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE, **optimizers, **arguments
    )


def combined_2(canned, wrap, **arguments):
    wide, deep = columns()
    legacy = tf.keras.optimizers.legacy
    optimizers = {
        "linear_optimizer": wrap(lambda: legacy.Ftrl(0.1)),
        "dnn_optimizer": wrap(lambda: legacy.Adagrad(0.1)),
    }
    shape = {
        "linear_feature_columns": wide,
        "dnn_feature_columns": deep,
        "dnn_hidden_units": [5],
    }
    return of_tf_2("DNNLinearCombinedClassifier", optimizers, **shape, **arguments)


def dnn_2(canned, wrap, **arguments):
    optimizers = {"optimizer": wrap(lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9))}
    shape = {"hidden_units": [5], "feature_columns": columns()[1]}
    return of_tf_2("DNNClassifier", optimizers, **shape, **arguments)


# How an optimizer gets its wrapper: at once, or when the model_fn calls for it.
WRAPS = {
    "instances": lambda make: hvd_tf.DistributedOptimizer(make()),
    "callables": lambda make: lambda: hvd_tf.DistributedOptimizer(make()),
}


class Weights(train.SessionRunHook):
    """The global variables at the start and at the end, slots and all, by name."""

    def begin(self):
        self.variables = {v.op.name: v for v in v1.global_variables()}

    def after_create_session(self, session, coord):
        self.start = session.run(self.variables)

    def end(self, session):
        self.values = session.run(self.variables)


def trained(estimator, batch_of_step, hooks=()):
    weights = Weights()
    estimator.train(input_fn(batch_of_step), hooks=[*hooks, weights], max_steps=STEPS)
    return weights


def check_like_one_process(together, alone):
    """All ranks have the same bits, and what one process has but for rounding."""
    bits = {name: value.tobytes() for name, value in together.values.items()}
    assert all(other == bits for other in hvd_tf.allgather_object(bits))
    assert set(together.values) == set(alone.values)
    for name, value in together.values.items():
        # A scalar is a setting, such as a rate of an optimizer of Keras, or the step.
        assert np.ndim(value) == 0 or not np.array_equal(value, together.start[name]), name
        difference = np.linalg.norm(value - alone.values[name])
        allowed = 2e-6 * np.linalg.norm(alone.values[name])
        if name.endswith("/bias/part_0/Adam"):
            # A bias' gradient is a mean of terms up to 1 that cancel out. Added in another order,
            # they give a difference that goes with the terms' size, not with the mean's.
            allowed += np.finfo(np.float32).epsneg * np.sqrt(np.size(value))
        assert difference <= allowed, name


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("make", [combined, dnn, linear, combined_2, dnn_2])
def test_like_one_process(rank, size, canned, tmp_path, make, wrap):
    """Initial weights are those of rank 0's seed, as in one process with that seed."""
    config = toolkit.run_config(model_dir=str(tmp_path / "together"), tf_random_seed=5)
    together = trained(
        make(canned, WRAPS[wrap], config=config),
        lambda step: batch(step, rank),
        [hvd_tf.BroadcastGlobalVariablesHook(0)],
    )
    alone = canned.RunConfig(model_dir=str(tmp_path / "alone"), tf_random_seed=5)
    alone = trained(
        make(canned, lambda optimizer: optimizer, config=alone),
        lambda step: joint_batch(step, size),
    )
    for name, value in alone.start.items():
        np.testing.assert_array_equal(together.start[name], value, err_msg=name)
    check_like_one_process(together, alone)


def test_warm_start(rank, size, canned, tmp_path):
    """Starts the deep part from a checkpoint. Only rank 0 needs to see it."""
    first = canned.RunConfig(model_dir=str(tmp_path / "first"), tf_random_seed=6)
    earlier = dnn(canned, lambda optimizer: optimizer, config=first)
    weights = trained(earlier, lambda step: joint_batch(step + 100, size))
    settings = canned.WarmStartSettings(str(tmp_path / "first"), vars_to_warm_start="dnn.*")
    config = toolkit.run_config(model_dir=str(tmp_path / "together"), tf_random_seed=5)
    together = trained(
        dnn(
            canned,
            WRAPS["callables"],
            config=config,
            warm_start_from=settings if rank == 0 else None,
        ),
        lambda step: batch(step, rank),
        [hvd_tf.BroadcastGlobalVariablesHook(0)],
    )
    alone = canned.RunConfig(model_dir=str(tmp_path / "alone"), tf_random_seed=5)
    alone = dnn(canned, lambda optimizer: optimizer, config=alone, warm_start_from=settings)
    kernel = "dnn/hiddenlayer_0/kernel/part_0"
    np.testing.assert_array_equal(together.start[kernel], weights.values[kernel])
    check_like_one_process(together, trained(alone, lambda step: joint_batch(step, size)))
