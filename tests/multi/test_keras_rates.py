# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras that set the learning rate."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small_fit import FAMILIES, IS_KERAS_3, fit, make_model

from hvd_tf import keras as hvd_keras
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


@pytest.fixture(params=FAMILIES)
def optimizers(request):
    """A module of optimizers."""
    return keras.optimizers if request.param == "new" else keras.optimizers.legacy


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
        ({"multiplier": 0.5, "staircase": False}, [0.5 ** (i / 3) for i in range(9)]),
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
