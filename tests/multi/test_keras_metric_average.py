# SPDX-License-Identifier: Apache-2.0
"""MetricAverageCallback against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small_fit import IS_KERAS_3, data, fit, make_model

from hvd_tf import keras as hvd_keras
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


def test_metrics_are_weighted_by_samples(hvd, rank, size):
    """Ranks have different numbers of samples; the last batches of some are not full."""
    model = make_model()
    model.compile("sgd", "mse", metrics=["mae"])
    rows, val_rows = 6 + 3 * rank, 5 + 4 * rank
    model.optimizer.learning_rate = 0.0
    x, y = data(rank, rows)
    own = {}

    class Before(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            own.update(logs)

    history = model.fit(
        x,
        y,
        batch_size=4,
        shuffle=False,
        verbose=0,
        validation_data=data(rank + 50, val_rows),
        callbacks=[Before(), callbacks.MetricAverageCallback()],
    )
    everyones = hvd.allgather_object((own, rows, val_rows))
    assert len({round(theirs["loss"], 6) for theirs, _, _ in everyones}) == size
    for name in ("loss", "mae", "val_loss", "val_mae"):
        weights = [val if name.startswith("val_") else train for _, train, val in everyones]
        expected = np.average([theirs[name] for theirs, _, _ in everyones], weights=weights)
        np.testing.assert_allclose(history.history[name][0], expected, rtol=1e-6)


def test_metrics_of_some_ranks_only_are_an_error_on_all(hvd, rank, size):
    model = make_model()
    model.compile("sgd", "mse", metrics=["mae"] if rank == 0 else [])
    with pytest.raises(ValueError, match="the metrics differ from those of rank 0.* mae"):
        fit(model, rank, [callbacks.MetricAverageCallback()])


class OwnLoss(keras.Model):
    """Has a metric of its own for its loss, and a way of its own to train, as Keras' guide does."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.dense(x)

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def test_metrics_of_a_models_own_in_the_first_epoch(rank, size):
    """The broadcast after the first batch leaves each rank its own."""
    model = OwnLoss()
    model.compile(optimizer=hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.0)))
    used = [callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()]
    x, y = np.zeros([8, 3], np.float32), np.full([8, 1], rank + 1.0, np.float32)
    history = model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=used).history
    average = np.mean([(one + 1.0) ** 2 for one in range(size)])
    np.testing.assert_allclose(history["loss"], [average, average], rtol=1e-6)


def test_each_value_of_a_metric_is_averaged(hvd, rank, size):
    average = callbacks.MetricAverageCallback()
    average.set_model(make_model())
    values = np.array([[0.25, 1.0], [rank, 2.0 * rank]], np.float32)
    logs = {"each": values, "one": np.float32(rank), "count": rank, "words": "as they are"}
    average.on_epoch_begin(0)
    average.on_epoch_end(0, logs)
    mean = (size - 1) / 2
    np.testing.assert_allclose(logs["each"], [[0.25, 1.0], [mean, 2 * mean]])
    assert logs["one"] == logs["count"] == mean and isinstance(logs["one"], float)
    assert logs["words"] == "as they are"


def test_metrics_of_different_shapes_are_refused(hvd, rank, size):
    average = callbacks.MetricAverageCallback()
    average.set_model(make_model())
    logs = {"loss": 1.0, "each": np.zeros([2 if rank == 0 else 3])}
    with pytest.raises(ValueError, match="shape of metrics differs: .*same metrics"):
        average.on_epoch_end(0, logs)


class Evaluate(keras.callbacks.Callback):
    """A program's own, which resets the model's metrics."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.evaluate(np.zeros((100, 1), np.float32), np.zeros((100, 1)), verbose=0)


@pytest.mark.parametrize("known", [True, False])
def test_an_evaluation_on_one_rank_in_between(rank, size, known):
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    rows = 6 + 3 * (size - 1)
    truths = np.full((rows, 1), 2.0 * rank, np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((np.ones((rows, 1), np.float32), truths)).batch(4)
    dataset = dataset if known else dataset.filter(lambda x, y: True)
    used = [Evaluate()] if rank == 0 else []
    used += [callbacks.MetricAverageCallback()]
    history = model.fit(dataset, epochs=2, verbose=0, callbacks=used).history
    expected = np.mean([(2.0 * one) ** 2 for one in range(size)])
    np.testing.assert_allclose(history["loss"], [expected] * 2, rtol=1e-6)


@pytest.mark.skipif(not IS_KERAS_3, reason="in Keras 2 every rank needs a batch in each epoch")
@pytest.mark.parametrize("without", ["first", "last"])
def test_a_rank_without_a_batch(hvd, rank, size, without):
    """It gets what the others have, so that callbacks behind do the same on all ranks."""
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", metrics=["mae"])
    idle = 0 if without == "first" else size - 1
    x, truths = np.ones((4, 1), np.float32), np.full((4, 1), 2.0 + rank, np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, truths)).batch(4)
    dataset = dataset.take(0) if rank == idle else dataset
    used = [callbacks.JoinCallback(), callbacks.MetricAverageCallback()]
    history = model.fit(dataset, epochs=2, verbose=0, callbacks=used).history
    of_others = [2.0 + one for one in range(size) if one != idle]
    np.testing.assert_allclose(history["mae"], [np.mean(of_others)] * 2, rtol=1e-6)
    np.testing.assert_allclose(history["loss"], [np.mean(np.square(of_others))] * 2, rtol=1e-6)
