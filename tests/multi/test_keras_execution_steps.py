# SPDX-License-Identifier: Apache-2.0
"""Several steps in one execution: all ranks make equally many."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras
# "auto" alone switches it on in 2.15 only.
SWITCHES = ("autotune_steps_per_execution", "enable_tune_steps_per_execution")
SWITCH = next((name for name in SWITCHES if hasattr(keras.Model, name)), "")
needs_tuner = pytest.mark.skipif(not SWITCH, reason="this Keras does not tune the number")


def make_model(steps):
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01))
    model.compile(optimizer, "mse", steps_per_execution=steps)
    if steps == "auto":
        setattr(model, SWITCH, True)
    return model


def fit(model, rank, *used, batches=40):
    rng = np.random.default_rng([37, rank])
    x, y = (rng.standard_normal((2 * batches, width)).astype(np.float32) for width in (3, 1))
    model.fit(x, y, batch_size=2, shuffle=False, epochs=2, verbose=0, callbacks=list(used))


class Changes(keras.callbacks.Callback):
    """Changes the number as Keras' own thread does, and differently on each rank."""

    def __init__(self, rank):
        super().__init__()
        self._rank, self._steps = rank, []

    def on_train_batch_end(self, batch, logs=None):
        self._steps.append(int(self.model._steps_per_execution.numpy()))
        tuner = self.model._steps_per_execution_tuner
        if hasattr(tuner, "steps_per_execution"):
            tuner.steps_per_execution = 3 + 2 * self._rank

    @property
    def seen(self):
        return self._steps


@needs_tuner
def test_all_take_what_the_first_rank_finds(hvd, rank):
    model, once, changes = make_model("auto"), make_model(1), Changes(rank)
    tuner = model._steps_per_execution_tuner
    fit(model, rank, changes)
    fit(once, rank)
    for theirs in hvd.allgather_object(changes.seen):
        assert theirs == changes.seen
    assert changes.seen[0] == 1 and 3 in changes.seen
    assert model._steps_per_execution_tuner is tuner
    assert tuner.steps_per_execution is model._steps_per_execution
    for got, expected in zip(model.get_weights(), once.get_weights()):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@needs_tuner
def test_they_begin_with_the_same_number(hvd, rank):
    """An evaluation of one rank may have changed it."""
    model = make_model("auto")
    model._steps_per_execution.assign(2 + rank)
    fit(model, rank)
    assert model._steps_per_execution.numpy() == 2


@needs_tuner
def test_ranks_that_join_need_a_number(rank):
    with pytest.raises(ValueError, match='JoinCallback with steps_per_execution="auto"'):
        fit(make_model("auto"), rank, hvd_keras.callbacks.JoinCallback())


def test_different_numbers_are_refused(rank):
    with pytest.raises(ValueError, match="steps_per_execution differs: 1 on rank 0, 2 on rank 1"):
        fit(make_model(1 + rank), rank)
