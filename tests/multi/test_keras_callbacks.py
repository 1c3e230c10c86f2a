# SPDX-License-Identifier: Apache-2.0
"""Callbacks of Keras: ranks that do not train together, and who saves the best model."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from cases import BEST_MODEL
from small_fit import data, fit, make_model

from hvd_tf import keras as hvd_keras
from hvd_tf.keras import callbacks

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


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


@pytest.mark.parametrize("trained_by", ["all", "others"])
def test_the_best_model_is_saved_once(hvd, rank, others, tmp_path, trained_by):
    """By the lowest rank of those that train the model."""
    path = tmp_path / f"best{BEST_MODEL}"  # each rank has a directory of its own
    trains = trained_by == "all" or rank > 0
    if trains:
        process_set = hvd.global_process_set if trained_by == "all" else others
        optimizer = keras.optimizers.SGD(0.01)
        optimizer = hvd_keras.DistributedOptimizer(optimizer, process_set=process_set)
        model = make_model()
        model.compile(optimizer, "mse")
        fit(model, rank, [callbacks.BestModelCheckpoint(monitor="loss", filepath=path)])
    saved = hvd.allgather_object(path.exists())
    assert [one for one, there in enumerate(saved) if there] == [0 if trained_by == "all" else 1]
