# SPDX-License-Identifier: Apache-2.0
"""Callbacks that look at no batch's logs cost no fetch of them, as a GPU would wait for it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras

RANKS = (2,)

keras = tf.keras


class Seen(keras.callbacks.Callback):
    """Notes what `fit` passes."""

    def __init__(self):
        super().__init__()
        self._supports_tf_logs = True
        self.kinds = set()

    def on_train_batch_end(self, batch, logs=None):
        self.kinds.add(tf.is_tensor(logs["loss"]))


@pytest.mark.skipif(
    not hasattr(keras.optimizers.Adam, "compute_gradients"), reason="Keras 3 fetches them always"
)
@pytest.mark.parametrize("name", ["broadcast", "rate", "commit", "batch"])
def test_logs_stay_tensors(hvd, name):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    callbacks, elastic = hvd_keras.callbacks, hvd_keras.elastic
    state = elastic.KerasState(model, batch=0)
    used = {
        "broadcast": lambda: callbacks.BroadcastGlobalVariablesCallback(0),
        "rate": lambda: callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1),
        "commit": lambda: elastic.CommitStateCallback(state),
        "batch": lambda: elastic.UpdateBatchStateCallback(state),
    }[name]()
    seen = Seen()
    x, y = np.ones([8, 3], np.float32), np.ones([8, 1], np.float32)
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[used, seen])
    assert seen.kinds == {True}
