# SPDX-License-Identifier: Apache-2.0
"""An optimizer's settings, such as the learning rate, go wherever its other variables go."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")


@pytest.fixture(params=["new"] if IS_KERAS_3 else ["new", "legacy"])
def optimizers(request):
    return keras.optimizers if request.param == "new" else keras.optimizers.legacy


def make_model(optimizers):
    keras.utils.set_random_seed(7)
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(1, name="last")(inputs))
    optimizer = optimizers.SGD(0.05, momentum=0.9)
    model.compile(hvd_keras.DistributedOptimizer(optimizer), keras.losses.MeanSquaredError())
    return model


def fit(model, rank, *used, epochs=1, batches=2):
    rng = np.random.default_rng([23, rank])
    x, y = (rng.standard_normal((4 * batches, width)).astype(np.float32) for width in (3, 1))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=list(used))


def set_rate(model, rate):
    model.optimizer.learning_rate = rate


def check(hvd, model, rate):
    rates = hvd.allgather_object(float(model.optimizer.learning_rate.numpy()))
    np.testing.assert_allclose(rates, [rate] * hvd.size())


@pytest.fixture
def broadcast():
    return hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)


class Lower(keras.callbacks.Callback):
    """Lowers the rate, on some ranks, and fails when it is asked to."""

    def __init__(self, on=True, fails_in=None):
        super().__init__()
        self.on, self.fails_in = on, fails_in

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and self.on:
            set_rate(self.model, 0.01)

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.fails_in:
            raise ZeroDivisionError


def test_the_root_s_rate_is_broadcast(hvd, rank, optimizers, broadcast):
    model = make_model(optimizers)
    set_rate(model, 0.5 if rank == 0 else 0.25)
    fit(model, rank, broadcast)
    check(hvd, model, 0.5)


def test_a_backup_has_the_rate(hvd, rank, optimizers, folder):
    def backup():
        return keras.callbacks.BackupAndRestore(str(folder / "backup"))

    with pytest.raises(ZeroDivisionError):
        fit(make_model(optimizers), rank, backup(), Lower(fails_in=2), epochs=4)
    hvd.allgather_object(None)
    model = make_model(optimizers)
    fit(model, rank, backup(), epochs=4)
    check(hvd, model, 0.01)
    for theirs in hvd.allgather_object(model.get_weights()):
        for got, wanted in zip(model.get_weights(), theirs):
            np.testing.assert_array_equal(got, wanted)


def test_ranks_that_join_take_the_rate_of_the_last(hvd, rank, size, optimizers):
    model = make_model(optimizers)
    set_rate(model, (rank + 1) / 10)
    fit(model, rank, hvd_keras.callbacks.JoinCallback(), batches=rank + 1)
    check(hvd, model, size / 10)


def test_an_elastic_state_has_the_rate(hvd, rank, optimizers):
    model = make_model(optimizers)
    state = hvd_keras.elastic.KerasState(model)
    set_rate(model, 0.5 if rank == 0 else 0.25)
    state.sync()
    check(hvd, model, 0.5)
    set_rate(model, 0.125)
    state.restore()
    check(hvd, model, 0.5)


def test_a_commit_of_other_variables_is_refused(rank, optimizers, tmp_path, monkeypatch):
    """As one of an earlier version, which had no settings."""
    monkeypatch.setenv("HVD_ELASTIC_DIR", str(tmp_path))
    state = hvd_keras.elastic.KerasState(make_model(optimizers))
    content = state._content()
    assert any(np.shape(value) == () and np.isclose(value, 0.05) for value in content)
    with pytest.raises(
        ValueError,
        match=rf"has {len(content) - 1} variables and this program {len(content)}: .* begin anew",
    ):
        state._set_content(content[:-1], tmp_path / "commit")


@pytest.mark.skipif(not IS_KERAS_3, reason="optimizers of Keras 2 have no pickles of their own")
def test_a_pickle_has_the_plain_optimizer(rank):
    """As one of a whole model has. Another process knows nothing of the derived class."""
    plain = keras.optimizers.SGD(0.25, momentum=0.5)
    optimizer = hvd_keras.DistributedOptimizer(plain)
    copied = pickle.loads(pickle.dumps(optimizer))
    assert type(copied) is keras.optimizers.SGD
    assert copied.get_config() == plain.get_config()
    scaling = pickle.loads(pickle.dumps(keras.optimizers.LossScaleOptimizer(optimizer)))
    assert type(scaling.inner_optimizer) is keras.optimizers.SGD
