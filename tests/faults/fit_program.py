# SPDX-License-Identifier: Apache-2.0
"""A rank of a job whose ranks do not end `fit` together, in the way that argv names."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import hvd_tf.keras as hvd

hvd.init()
how = sys.argv[1]
batches = 5 + hvd.rank() if how == "batches" else 5
array = np.ones((4 * batches, 1), np.float32)
dataset = tf.data.Dataset.from_tensor_slices((array, array)).batch(4)
dataset = dataset.filter(lambda x, y: True)  # nobody knows how many batches are left
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), "mse")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if how == "stop" and hvd.rank() == 0:
    end = tf.keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 1)
    )
    callbacks.append(end)
model.fit(dataset, epochs=3, verbose=0, callbacks=callbacks)
print("finished")
