# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras on several ranks: equal starts, averaged metrics, learning rates."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
FAMILIES = ["new"] if IS_KERAS_3 else ["new", "legacy"]


@pytest.fixture(params=FAMILIES)
def optimizers(request):
    """A module of optimizers."""
    return keras.optimizers if request.param == "new" else keras.optimizers.legacy


def make_model(seed=0, dropout=0.0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input([3])
    x = keras.layers.Dense(4, activation="tanh")(inputs)
    x = keras.layers.BatchNormalization()(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def data(rank, rows=12):
    rng = np.random.default_rng([5, rank])
    x = rng.standard_normal((rows, 3)).astype(np.float32)
    return x, rng.standard_normal((rows, 1)).astype(np.float32)


def fit(model, rank, used, epochs=1, rows=12, **arguments):
    return model.fit(
        *data(rank, rows),
        batch_size=4,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=used,
        **arguments,
    )


def slots_of(optimizer):
    variables = optimizer.variables
    return [v.numpy() for v in (variables() if callable(variables) else variables)]


# --- Broadcast -----------------------------------------------------------------


def test_all_start_as_the_root(hvd, rank, size, optimizers):
    """Different weights, and a used optimizer on the root only."""
    root = size - 1
    model = make_model(seed=rank, dropout=0.5)
    optimizer = optimizers.SGD(0.05, momentum=0.9)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), "mse")
    broadcast = callbacks.BroadcastGlobalVariablesCallback(root)
    fit(model, rank, [broadcast], rows=4)  # one batch
    assert broadcast.broadcast_done
    everyones = hvd.allgather_object((model.get_weights(), slots_of(optimizer)))
    for theirs in everyones:
        for got, expected in zip(theirs[0] + theirs[1], everyones[root][0] + everyones[root][1]):
            np.testing.assert_array_equal(got, expected)


def test_local_variables_stay(hvd, rank, size):
    model = make_model(seed=rank)
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    own = model.layers[-1].kernel
    before = own.numpy()
    broadcast = callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[own])
    fit(model, rank, [broadcast])
    np.testing.assert_array_equal(own.numpy(), before)
    assert len({first.tobytes() for first in hvd.allgather_object(before)}) == size
    everyones = hvd.allgather_object(model.layers[1].get_weights())
    for theirs in everyones:
        np.testing.assert_array_equal(theirs[0], everyones[0][0])


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 has no such variables")
def test_ranks_drop_out_different_units(hvd, rank, size):
    model = make_model(seed=rank, dropout=0.5)
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    fit(model, rank, [callbacks.BroadcastGlobalVariablesCallback(0)])
    states = [v.numpy().tolist() for v in model.variables if "seed_generator" in v.path]
    everyones = hvd.allgather_object(states)
    assert states and len({str(theirs) for theirs in everyones}) == size


class TwoBlocks(keras.Model):
    """Two blocks of equal shapes, whose variables are in an order of one's own."""

    def __init__(self, order):
        super().__init__()
        self.up = keras.layers.Dense(3, use_bias=False, name="up")
        self.down = keras.layers.Dense(3, use_bias=False, name="down")
        self.order = order

    def call(self, inputs):
        return self.up(inputs) - self.down(inputs)

    @property
    def trainable_variables(self):
        return [v for name in self.order for v in getattr(self, name).trainable_variables]


def test_variables_in_another_order_are_an_error_on_all(hvd, rank, size):
    model = TwoBlocks(["up", "down"] if rank < size - 1 else ["down", "up"])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    x = np.ones((4, 3), np.float32)
    message = (
        f"on rank {size - 1} than on rank 0: number 0 is '.*down/kernel' in place of "
        "'.*up/kernel'. Ranks match gradients by place"
    )
    with pytest.raises(ValueError, match=message):
        model.fit(x, x, verbose=0, callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)])


@pytest.mark.parametrize("local", [False, True])
def test_another_order_of_what_stays_local_is_none(hvd, rank, size, local):
    """Nor is it with an optimizer of one's own, beside a tape that may match by name."""
    model = TwoBlocks(["up", "down"] if rank < size - 1 else ["down", "up"])
    optimizer = keras.optimizers.SGD(0.0)
    if local:
        model(np.ones((1, 3), np.float32))
        optimizer = hvd_keras.PartialDistributedOptimizer(
            optimizer, local_layers=[model.up, model.down]
        )
    model.compile(optimizer, "mse")
    x = np.ones((4, 3), np.float32)
    model.fit(x, x, verbose=0, callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)])
    (up,), (everyones, *_) = model.up.get_weights(), hvd.allgather_object(model.up.get_weights())
    np.testing.assert_array_equal(up, everyones[0])


# --- Metrics -------------------------------------------------------------------


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


# --- Learning rates ------------------------------------------------------------


class Rates(keras.callbacks.Callback):
    """The learning rate in each batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate.numpy()))


def rates_with(rank, callback, optimizer=None, epochs=4):
    model, rates = make_model(), Rates()
    optimizer = optimizer or keras.optimizers.SGD(0.3)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), "mse")
    history = fit(model, rank, [callback, rates], epochs)
    return rates.seen, history.history


def test_warm_up(hvd, rank, size, optimizers):
    callback = callbacks.LearningRateWarmupCallback(0.3, warmup_epochs=2, verbose=1)
    seen, history = rates_with(rank, callback, optimizers.SGD(0.3))
    # Three batches an epoch, the rate that is right at each one's end.
    share = [(i + 1) / 6 for i in range(6)]
    expected = [0.3 / size * (2 * s * (size - 1) / 2 + 1) for s in share] + [0.3] * 6
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    np.testing.assert_allclose(history["lr"], expected[2::3], rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"multiplier": 0.5}, [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
        ({"multiplier": 0.5, "start_epoch": 1}, [3, 3, 3, 1, 1, 1, 0.5, 0.5, 0.5]),
        ({"multiplier": 0.5, "end_epoch": 2}, [1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"multiplier": lambda epoch: 2 + epoch}, [2, 2, 2, 3, 3, 3, 4, 4, 4]),
        (
            {"multiplier": lambda epoch: 2 + epoch, "staircase": False},
            [2 + i / 3 for i in range(9)],
        ),
        (
            {"multiplier": keras.optimizers.schedules.PiecewiseConstantDecay([1.0], [1.0, 0.1])},
            [1, 1, 1, 1, 1, 1, 0.1, 0.1, 0.1],
        ),
    ],
)
def test_schedules(hvd, rank, arguments, expected):
    callback = callbacks.LearningRateScheduleCallback(0.1, **arguments)
    seen, _ = rates_with(rank, callback, epochs=3)
    np.testing.assert_allclose(seen, np.multiply(expected, 0.1), rtol=1e-6)


def test_momentum_correction(hvd, rank, size, optimizers):
    """By hand: v = m * v * new / old - rate * g at the step where the rate changes."""
    rates = [0.1, 0.02, 0.02, 0.08]
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, use_bias=False)])
    model.layers[-1].set_weights([np.ones((1, 1), np.float32)])
    model.compile(hvd_keras.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9)), "mse")
    schedule = callbacks.LearningRateScheduleCallback(1.0, lambda epoch: rates[int(epoch)])
    x, y = np.ones((4, 1), np.float32), np.zeros((4, 1), np.float32)
    model.fit(x, y, epochs=4, verbose=0, callbacks=[schedule])
    w, v, old = 1.0, 0.0, rates[0]
    for rate in rates:
        v = 0.9 * v * rate / old - rate * 2 * w
        w, old = w + v, rate
    np.testing.assert_allclose(model.get_weights()[0], [[w]], rtol=1e-5)


def test_what_makes_no_sense(hvd, rank):
    with pytest.raises(ValueError, match="initial_lr is None"):
        callbacks.LearningRateScheduleCallback(None, 0.5)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    callback = callbacks.LearningRateScheduleCallback(0.1, 0.5)
    with pytest.raises(ValueError, match="give the optimizer a number"):
        rates_with(rank, callback, keras.optimizers.SGD(schedule))
    if not IS_KERAS_3:
        with pytest.raises(ValueError, match="give the optimizer a number"):
            rates_with(rank, callback, keras.optimizers.legacy.SGD(schedule))


# --- Ranks that do not train together ------------------------------------------


def compiled(passes=1):
    model = make_model()
    optimizer = keras.optimizers.SGD(0.01)
    model.compile(hvd_keras.DistributedOptimizer(optimizer, backward_passes_per_step=passes), "mse")
    return model


def test_unequal_numbers_of_batches_are_an_error_on_all(hvd, rank, size):
    told = "rank 0 begins fit with 3 batches an epoch, rank 1 begins fit with 4 batches an epoch"
    with pytest.raises(ValueError, match=f"do not train together: {told}.*hvd_tf.data does"):
        fit(compiled(), rank, [callbacks.BroadcastGlobalVariablesCallback(0)], rows=12 + 4 * rank)
    # All can go on.
    fit(compiled(), rank, [callbacks.BroadcastGlobalVariablesCallback(0)])


class Stop(keras.callbacks.Callback):
    """Ends the training of one rank after the second epoch."""

    def __init__(self, here):
        super().__init__()
        self.here = here

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = self.here and epoch == 1


def batches_of(rank, number):
    """A dataset whose number of batches nobody knows."""
    x, y = data(rank, 4 * number)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    return dataset.filter(lambda x, y: True)


@pytest.mark.parametrize("passes", [1, 2])
def test_epochs_that_end_together(hvd, rank, size, passes):
    model = compiled(passes)
    used = [callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()]
    history = model.fit(batches_of(rank, 4), epochs=3, verbose=0, callbacks=[*used, Stop(True)])
    assert len(history.history["loss"]) == 2
    weights = hvd.allgather_object([v.numpy() for v in model.trainable_variables])
    for got, expected in zip(weights[-1], weights[0]):
        np.testing.assert_array_equal(got, expected)
