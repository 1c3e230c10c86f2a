# SPDX-License-Identifier: Apache-2.0
"""`fit` leaves it to the first step to make the optimizer's variables, as in a single process."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")


class Temperature:
    """Has a variable that no model tracks."""

    def __init__(self):
        make = keras.Variable if IS_KERAS_3 else tf.Variable
        self.log = make(0.5, name="log")


class Tempered(keras.Model):
    """Trains a temperature beside its own weights."""

    def train_step(self, batch):
        x, y = batch
        weights = [*self.trainable_variables, self.temperature.log]
        with tf.GradientTape() as tape:
            log = tf.convert_to_tensor(self.temperature.log)
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2) * tf.exp(-log) + log
        sources = (
            [getattr(weight, "value", weight) for weight in weights] if IS_KERAS_3 else weights
        )
        gradients = tape.gradient(loss, sources)
        if not IS_KERAS_3:  # whose apply_gradients does not reduce
            gradients = self.optimizer._allreduce(gradients, weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        return {"loss": loss}


def data(rank, batches=2):
    rng = np.random.default_rng([31, rank])
    return [rng.standard_normal((4 * batches, width)).astype(np.float32) for width in (3, 1)]


def fit(model, rank, *used, batches=2):
    model.fit(*data(rank, batches), batch_size=4, verbose=0, callbacks=list(used))


def make_model(kind=keras.Model, **arguments):
    keras.utils.set_random_seed(7)
    inputs = keras.Input([3])
    model = kind(inputs, keras.layers.Dense(1, name="last")(inputs))
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.05))
    model.compile(optimizer, **arguments)
    return model


def check_equal(hvd, values):
    for theirs in hvd.allgather_object(values):
        for got, expected in zip(theirs, values):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("joins", [False, True])
def test_a_variable_that_the_model_does_not_track(hvd, rank, joins):
    model, temperature = make_model(Tempered), Temperature()
    object.__setattr__(model, "temperature", temperature)
    callbacks = hvd_keras.callbacks
    if joins:
        fit(model, rank, callbacks.JoinCallback(), batches=1 + rank)
    else:
        fit(model, rank, callbacks.BroadcastGlobalVariablesCallback(0))
        check_equal(hvd, [temperature.log.numpy()])
    check_equal(hvd, model.get_weights())
    assert float(temperature.log.numpy()) != 0.5


@pytest.mark.parametrize("callback", ["none", "join", "backup"])
def test_all_layers_are_frozen_at_first(hvd, rank, callback, tmp_path):
    model = make_model(loss="mse")

    def used():
        if callback == "join":
            return [hvd_keras.callbacks.JoinCallback()]
        return [keras.callbacks.BackupAndRestore(str(tmp_path))] if callback == "backup" else []

    model.layers[-1].trainable = False
    model.compile(model.optimizer, "mse")
    start = model.get_weights()
    fit(model, rank, *used())
    model.layers[-1].trainable = True
    model.compile(model.optimizer, "mse")
    fit(model, rank, *used())
    check_equal(hvd, model.get_weights())
    assert not np.array_equal(model.get_weights()[0], start[0])


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("scales", [False, True])
def test_rank_0_alone_has_made_them(hvd, rank, steps, scales):
    """As where it has loaded a model."""
    model = make_model(loss="mse", steps_per_execution=steps)
    if scales:
        optimizer = keras.mixed_precision.LossScaleOptimizer(model.optimizer)
        model.compile(optimizer, "mse", steps_per_execution=steps)
    if rank == 0:
        model.optimizer.build(model.trainable_variables)
    fit(model, rank, hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0))
    check_equal(hvd, model.get_weights())
