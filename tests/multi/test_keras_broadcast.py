# SPDX-License-Identifier: Apache-2.0
"""BroadcastGlobalVariablesCallback: equal starts, also where ranks are at different points."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from small_fit import FAMILIES, IS_KERAS_3, data, fit, make_model

from hvd_tf import keras as hvd_keras
from hvd_tf.exceptions import HorovodInternalError
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


@pytest.fixture(params=FAMILIES)
def optimizers(request):
    """A module of optimizers."""
    return keras.optimizers if request.param == "new" else keras.optimizers.legacy


def slots_of(optimizer):
    variables = optimizer.variables
    return [v.numpy() for v in (variables() if callable(variables) else variables)]


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


@pytest.mark.parametrize("late", [False, True])
def test_the_first_gradients_are_those_of_the_roots_weights(hvd, rank, size, optimizers, late):
    """Which may be loaded ones. A layer that is built late is given with the slots."""
    root, rate = size - 1, 0.5
    inputs = keras.Input([2])
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    if late:
        model = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    optimizer = optimizers.SGD(rate, momentum=0.9)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), "mse")
    loaded = np.array([[1.0], [-2.0]], np.float32)
    if rank == root or not late:
        model.build([None, 2])
        model.set_weights([loaded + (rank - root)])
    x = np.eye(2, dtype=np.float32) * (rank + 1)
    used = [callbacks.BroadcastGlobalVariablesCallback(root)]
    model.fit(x, np.zeros([2, 1], np.float32), batch_size=2, verbose=0, callbacks=used)
    # The mean of (x w)^2 over two rows, and over ranks.
    gradient = loaded * np.mean([(of + 1) ** 2 for of in range(size)])
    (found,) = model.get_weights()
    if late:  # other ranks' gradients were those of new weights
        everyones = hvd.allgather_object(found)
        for theirs in everyones:
            np.testing.assert_array_equal(theirs, everyones[root])
    else:
        np.testing.assert_allclose(found, loaded - rate * gradient, rtol=1e-6)


def test_a_model_with_a_vocabulary(hvd, rank, size):
    """Keras 2 has it among the variables. It is each rank's own."""
    keras.utils.set_random_seed(rank)
    lookup = keras.layers.IntegerLookup(max_tokens=4)
    lookup.adapt(np.array([[1], [2], [2]]))
    inputs = keras.Input([1], dtype="int64")
    flat = keras.layers.Flatten()(keras.layers.Embedding(4, 2)(lookup(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1)(flat))
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    used = [callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(np.array([[1], [2]]), np.ones((2, 1), np.float32), verbose=0, callbacks=used)
    state = hvd_keras.elastic.KerasState(model)
    state.sync()
    state.restore()
    everyones = hvd.allgather_object([v.numpy() for v in model.trainable_variables])
    for theirs in everyones:
        for got, expected in zip(theirs, everyones[0]):
            np.testing.assert_array_equal(got, expected)
    assert len(lookup.get_vocabulary()) == 3


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


@pytest.mark.parametrize("shape", [(), (3,)])
def test_one_local_variable(hvd, rank, size, shape):
    """Without a list around it, as with Horovod. Also of a value that is false."""
    for variable in (tf.Variable(tf.zeros(shape)), tf.Variable(tf.ones(shape))):
        for callback in (callbacks.BroadcastGlobalVariablesCallback, callbacks.JoinCallback):
            used = callback(local_variables=variable, **root_of(callback))
            assert [one is variable for one in used._local] == [True]


def root_of(callback):
    return {} if callback is callbacks.JoinCallback else {"root_rank": 0}


class FailOnce(keras.callbacks.Callback):
    """Fails in the first batch, on one rank. The others fail in what they do together then."""

    def __init__(self, here):
        super().__init__()
        self.here = here

    def on_train_batch_end(self, batch, logs=None):
        if self.here:
            self.here = False
            raise HorovodInternalError("tried")


def test_a_rank_that_fails_before_the_first_broadcast(hvd, rank, size, optimizers):
    """The callbacks are made once, and the training begins anew."""
    model = make_model(seed=rank)
    model.compile(hvd_keras.DistributedOptimizer(optimizers.SGD(0.05)), "mse")
    state = hvd_keras.elastic.KerasState(model, batch=0, epoch=0)
    broadcast = callbacks.BroadcastGlobalVariablesCallback(0)
    used = [FailOnce(rank == size - 1), broadcast, hvd_keras.elastic.CommitStateCallback(state)]

    @hvd_keras.elastic.run
    def train(state):
        fit(model, rank, used)

    train(state)
    assert broadcast.broadcast_done
    everyones = hvd.allgather_object(model.trainable_variables[0].numpy())
    for theirs in everyones:
        np.testing.assert_array_equal(theirs, everyones[0])


@pytest.mark.skipif(not IS_KERAS_3, reason="in Keras 2 every rank needs a batch in each epoch")
@pytest.mark.parametrize("without", ["the root", "another"])
def test_a_rank_without_a_batch_in_the_first_epoch(hvd, rank, size, without):
    model = make_model(seed=rank)
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), "mse")
    root = 0 if without == "the root" else size - 1
    epochs = []

    def batches():
        epochs.append(None)
        for _ in range(0 if rank == 0 and len(epochs) == 1 else 3):
            yield tuple(array[:4] for array in data(rank))

    signature = tuple(tf.TensorSpec((4, width)) for width in (3, 1))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    used = [callbacks.BroadcastGlobalVariablesCallback(root), callbacks.JoinCallback()]
    model.fit(dataset, epochs=3, verbose=0, callbacks=used)
    everyones = hvd.allgather_object(model.get_weights())
    for theirs in everyones:
        for got, expected in zip(theirs, everyones[0]):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("adapts", ["root", "all"])
def test_a_normalization_is_the_roots(hvd, rank, size, built, adapts):
    """The layer computes with constants that it has made of its variables."""
    if IS_KERAS_3 and adapts == "root" and not built:
        pytest.skip("Keras 3 cannot build the layer in a training step")
    root = size - 1
    x = np.random.RandomState(rank).normal(3.0, 2.0, [8, 3]).astype(np.float32) * (rank + 1)
    normalization = keras.layers.Normalization()
    if adapts == "all" or rank == root:
        normalization.adapt(x)
    model = keras.Sequential([normalization, keras.layers.Dense(1)])
    if built:
        model.build([None, 3])
        model.predict(x, verbose=0)  # traces its function
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    target = np.ones([8, 1], np.float32)
    used = [callbacks.BroadcastGlobalVariablesCallback(root)]
    model.fit(x, target, batch_size=4, shuffle=False, verbose=0, callbacks=used)
    mean, variance = x.mean(axis=0), x.var(axis=0)
    mean, variance = hvd.allgather_object((mean, variance))[root]
    kernel, bias = model.layers[1].get_weights()
    common = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = (common - mean) / np.sqrt(variance) @ kernel + bias
    np.testing.assert_allclose(model.predict(common, verbose=0), expected, rtol=1e-4)
    # Also in the step that `fit` has traced.
    model.optimizer.learning_rate = 0.0
    model.reset_metrics()
    found = model.train_on_batch(common, np.zeros([2, 1], np.float32))
    np.testing.assert_allclose(np.ravel(found)[0], np.mean(expected**2), rtol=1e-3)


@pytest.mark.parametrize("adapts", ["root", "all"])
def test_a_states_normalization_is_rank_0s(hvd, rank, adapts):
    x = np.random.RandomState(rank).normal(3.0, 2.0, [8, 3]).astype(np.float32) * (rank + 1)
    normalization = keras.layers.Normalization()
    if adapts == "all" or rank == 0:
        normalization.adapt(x)
    model = keras.Sequential([keras.Input([3]), normalization, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    hvd_keras.elastic.KerasState(model).sync()
    everyones = hvd.allgather_object(model.predict(np.ones([2, 3], np.float32), verbose=0))
    for theirs in everyones:
        np.testing.assert_array_equal(theirs, everyones[0])
