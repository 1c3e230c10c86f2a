# SPDX-License-Identifier: Apache-2.0
"""Elastic training by Keras' fit: its state, its callbacks, and batches that are not lost."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras
from hvd_tf._internal.compat import tf_variable
from hvd_tf.exceptions import HorovodInternalError

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


def make_model(seed, passes=1):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    distributed = hvd_keras.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    model.compile(distributed, "mse")
    return model


def fit(model, state, rank, fail_at=None, epochs=3):
    """fail_at: the number of the training batch, from 0, in which this rank fails."""
    rng = np.random.default_rng([17, rank])
    x = rng.standard_normal((16, 3)).astype(np.float32)
    y = rng.standard_normal((16, 1)).astype(np.float32)
    done = []

    class Fail(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            done.append(batch)
            if len(done) - 1 == fail_at:
                raise HorovodInternalError

    elastic = hvd_keras.elastic

    @elastic.run
    def train(state):
        used = [
            elastic.UpdateEpochStateCallback(state),
            elastic.UpdateBatchStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=100),
            Fail(),
        ]
        arguments = {"batch_size": 4, "shuffle": False, "verbose": 0, "callbacks": used}
        model.fit(x, y, epochs=epochs, initial_epoch=state.epoch, **arguments)

    train(state)
    return [variable.numpy() for variable in model.trainable_variables]


# With several passes they reduce in batches 1, 3, 5, 7 and so on.
@pytest.mark.parametrize(("fails_at", "passes"), [(6, 1), (6, 2), (7, 2)])
def test_fit_goes_on_as_if_nothing_had_been(hvd, rank, size, fails_at, passes):
    ends = []
    for fail_at in (None, fails_at if rank == size - 1 else None):
        model = make_model(seed=rank, passes=passes)
        state = hvd_keras.elastic.KerasState(model, epoch=0, batch=0)
        ends.append(fit(model, state, rank, fail_at))
        assert (state.epoch, state.batch) == (3, 0)
    # The first model began as that of rank 0, and so did the second.
    for got, expected in zip(*ends):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_batches_of_an_epoch_that_went_on_count_together(hvd):
    """Else a second failure would repeat those before the first one."""
    state = hvd.elastic.ObjectState(batch=0)
    state.batch = 3
    counted = hvd_keras.elastic.UpdateBatchStateCallback(state)
    seen = []
    counted.on_train_begin()
    for epoch in range(2):
        for batch in range(2):
            counted.on_train_batch_end(batch)
            seen.append(state.batch)
        counted.on_epoch_end(epoch)
        seen.append(state.batch)
    assert seen == [4, 5, 0, 1, 2, 0]


def test_a_warm_up_goes_on_in_the_middle_of_an_epoch(hvd, rank, size):
    """Else its last rate is never reached."""
    epochs, steps = 3, 4
    x = np.full((2, 3), 1.0 + rank, np.float32)
    dataset = tf.data.Dataset.from_tensors((x, np.ones((2, 1), np.float32))).repeat()
    elastic = hvd_keras.elastic
    rates, ends = [], []
    for fails in (False, True):
        model = make_model(seed=0)
        state = elastic.KerasState(model, epoch=0, batch=0)
        begun = []

        class Fail(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None, begun=begun, fails=fails):
                begun.append(batch)
                if fails and len(begun) == 7 and rank == size - 1:
                    raise HorovodInternalError

        used = [
            hvd_keras.callbacks.LearningRateWarmupCallback(0.1, 2, steps_per_epoch=steps),
            elastic.UpdateEpochStateCallback(state),
            elastic.UpdateBatchStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=2),
            Fail(),
        ]

        @elastic.run
        def train(state, model=model, used=used):
            while state.epoch < epochs:
                model.fit(
                    dataset,
                    steps_per_epoch=steps - state.batch,
                    initial_epoch=state.epoch,
                    epochs=state.epoch + 1,
                    callbacks=used,
                    verbose=0,
                )

        train(state)
        rates.append(float(model.optimizer.learning_rate.numpy()))
        ends.append(model.get_weights())
    np.testing.assert_allclose(rates, 0.1, rtol=1e-6)
    for got, expected in zip(*ends):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_epochs_of_a_loop_that_tells_of_ends_alone(hvd):
    state = hvd.elastic.ObjectState(epoch=3)
    counted = hvd_keras.elastic.UpdateEpochStateCallback(state)
    for epoch in range(2):
        counted.on_epoch_end(epoch)
    assert state.epoch == 5


def test_a_model_that_is_compiled_after_its_state(hvd, rank, size):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    state = hvd_keras.elastic.KerasState(model)
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), "mse")
    state.sync()
    kept = len(state._kept)
    model.fit(np.ones((4, 3), np.float32), np.ones((4, 1), np.float32), verbose=0)
    state.commit()
    assert len(state._kept) == kept  # so a new start can read it in its first sync


def test_a_restored_state_begins_with_the_first_pass(hvd, rank, size):
    """Also where ranks stand at different passes: each has sums of its own then."""
    model = make_model(seed=0, passes=2)
    x, y = np.ones((4, 3), np.float32), np.full((4, 1), rank, np.float32)
    state = hvd_keras.elastic.KerasState(model)
    for again in (state.restore, state.sync):
        before = model.get_weights()
        if rank == 0:
            model.train_on_batch(x, y)
        again()
        model.train_on_batch(x, y)
        for got, expected in zip(model.get_weights(), before):
            np.testing.assert_array_equal(got, expected)
        model.train_on_batch(x, y)
        everyones = hvd.allgather_object(model.get_weights())
        assert any((got != old).any() for got, old in zip(everyones[0], before))
        for theirs in everyones:
            assert all((got == other).all() for got, other in zip(theirs, everyones[0]))
        state.commit()


def test_a_model_without_variables_is_refused(hvd):
    with pytest.raises(ValueError, match="build it, or call it once"):
        hvd_keras.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


def test_a_module(hvd, rank, size):
    class Scale(tf.Module):
        def __init__(self):
            super().__init__()
            self.factor = tf.Variable(1.0 + rank)

    module = Scale()
    state = hvd.elastic.TensorFlowKerasState(module, step=rank)
    state.sync()
    assert (float(module.factor.numpy()), state.step) == (1.0, 0)


@pytest.mark.parametrize("is_distributed", [True, False])
def test_an_optimizer_of_tf_1(hvd, rank, size, is_distributed):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
    if is_distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer)
    state.sync()
    x = np.ones((4, 3), np.float32)

    def step():
        weights = [tf_variable(one) for one in model.trainable_variables]
        optimizer.minimize(lambda: tf.reduce_mean(model(x) ** 2), var_list=weights)
        return [one.numpy() for one in [*model.variables, *optimizer.variables()]]

    expected = step()
    state.restore()
    got = step()
    assert len(got) == 2 + 2 * 2 + 2  # two moments for each weight, and two powers
    for one, other in zip(got, expected):
        np.testing.assert_array_equal(one, other)
