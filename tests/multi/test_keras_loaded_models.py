# SPDX-License-Identifier: Apache-2.0
"""Rank 0 alone loads a model, whose variables then have other names than where it was built."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from cases import reads_legacy

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
layers = keras.layers
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
FAMILIES = ["new"]
if not IS_KERAS_3:
    FAMILIES.append(pytest.param("legacy", marks=reads_legacy))
FEATURES = (5, 3)


@keras.utils.register_keras_serializable(package="tests")
class Block(layers.Layer):
    """Two layers without names, alike in shape."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.first, self.second = layers.Dense(3), layers.Dense(3)

    def call(self, x):
        return self.second(self.first(x))


@keras.utils.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    """A model of a class of the program."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.block, self.last = Block(), layers.Dense(1)

    def call(self, x):
        return self.last(self.block(x))

    def get_config(self):
        return {}


def functional(*makers):
    """Makes the last layer first. A loaded model makes it last, and so has other numbers."""
    last = layers.Dense(1)
    inputs = outputs = keras.Input(FEATURES)
    for layer in [*(make() for make in makers), last]:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def sequential():
    return keras.Sequential([keras.Input(FEATURES), layers.Dense(3), layers.Dense(3)])


MODELS = {
    "sequential": sequential,
    "wrapped": lambda: functional(
        lambda: layers.TimeDistributed(layers.Dense(3)),
        lambda: layers.Bidirectional(layers.LSTM(2, return_sequences=True)),
    ),
    "own layer": lambda: functional(Block),
    "subclassed": Subclassed,
}


def data(rank):
    rng = np.random.default_rng([29, rank])
    return [rng.standard_normal((8, 5, width)).astype(np.float32) for width in (3, 1)]


def built(kind, optimizer):
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    model = MODELS[kind]()
    model(np.zeros((1, *FEATURES), np.float32))
    model.compile(optimizer, keras.losses.MeanSquaredError())
    return model


def fit(model, rank):
    broadcast = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(*data(rank), batch_size=2, shuffle=False, verbose=0, callbacks=[broadcast])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", MODELS)
def test_it_trains_as_where_all_load_it(hvd, rank, tmp_path, kind, family):
    optimizers = keras.optimizers if family == "new" else keras.optimizers.legacy

    def fresh():
        return hvd_keras.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9))

    path = str(tmp_path / "model.keras")
    saved = built(kind, fresh())
    fit(saved, rank)
    saved.save(path)
    of_all = hvd_keras.load_model(path)
    fit(of_all, rank)
    # As in processes that have made no other model.
    keras.backend.clear_session()
    if rank == 0:
        model = hvd_keras.load_model(path)
    else:  # the slots come from rank 0
        model = built(kind, fresh())
        model.set_weights(saved.get_weights())
    fit(model, rank)
    for got, expected, before in zip(*(m.get_weights() for m in (model, of_all, saved))):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert not np.allclose(got, before, rtol=1e-3, atol=0)


def test_a_tape_s_gradients(hvd, rank, tmp_path):
    path = str(tmp_path / "model.keras")
    built("sequential", "sgd").save(path)
    keras.backend.clear_session()
    model = keras.models.load_model(path) if rank == 0 else built("sequential", "sgd")
    x, _ = data(rank)

    def gradients(wrap):
        with wrap(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    own = [gradient.numpy() for gradient in gradients(lambda tape: tape)]
    expected = [np.mean(theirs, axis=0) for theirs in zip(*hvd.allgather_object(own))]
    for got, wanted in zip(gradients(hvd.DistributedGradientTape), expected):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_variables_are_broadcast_by_their_places(hvd, rank, tmp_path):
    """Where names are alike but for scopes and numbers."""
    path = str(tmp_path / "model.keras")
    built("own layer", "sgd").save(path)
    keras.backend.clear_session()
    model = keras.models.load_model(path) if rank == 0 else built("own layer", "sgd")
    for place, weight in enumerate(model.trainable_variables):
        weight.assign(tf.fill(weight.shape, float(place if rank == 0 else -1)))
    hvd.broadcast_variables(model.variables, 0)
    for place, weight in enumerate(model.trainable_variables):
        np.testing.assert_array_equal(weight.numpy(), np.full(weight.shape, place))


def test_layers_that_have_other_numbers(hvd, rank):
    """As where rank 0 has made a model less. One name is of another layer on each rank."""
    first = 0 if rank == 0 else 1
    names = [f"dense_{first + i}/kernel" for i in range(2)]
    variables = [tf.Variable([float(rank), float(i)], name=name) for i, name in enumerate(names)]
    hvd.broadcast_variables(variables, 0)
    assert [variable.numpy().tolist() for variable in variables] == [[0.0, 0.0], [0.0, 1.0]]
