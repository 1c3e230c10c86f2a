# SPDX-License-Identifier: Apache-2.0
"""Horovod's modules for elastic training, as programs build on them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

RANKS = (2,)
IN_FULL = (3,)


@pytest.fixture(autouse=True)
def installed():
    hvd_tf.install_as_horovod()


def test_a_new_start_by_the_programs_own_function(hvd, rank, size):
    from horovod.common.elastic import ObjectState, run_fn

    done = []

    def reset():
        done.append("reset")
        hvd.shutdown()
        hvd.init()

    def train(state, last):
        done.append(state.step)
        state.step += 1
        state.commit()
        state.step += 1
        if len(done) == 1:
            # Nobody waits for a rank that has left.
            hvd.barrier()
            raise hvd_tf.exceptions.HorovodInternalError("tried")
        return hvd.allreduce(tf.constant(float(last)), op=hvd.Sum).numpy()

    state = ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    state.register_reset_callbacks([lambda: done.append("callback")])
    assert run_fn(train, reset)(state, last=3) == 3 * size
    assert done == [0, "reset", "callback", 1]


def test_callbacks_that_programs_derive_from(hvd):
    """Those of Horovod have on_batch_end, and commit for a class of the program's own."""
    from horovod.tensorflow.keras import elastic

    seen = []

    class Commit(elastic.CommitStateCallback):
        def commit(self):
            seen.append("commit")
            super().commit()

    class Update(elastic.UpdateBatchStateCallback):
        def on_batch_end(self, batch, logs=None):
            super().on_batch_end(batch, logs)
            seen.append(self.state.batch)

        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            seen.append("train")

    model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.0), "mse")
    state = elastic.KerasState(model, batch=0)
    callbacks = [Update(state), Commit(state, batches_per_commit=2)]
    x = np.ones((3, 1), np.float32)
    model.fit(x, x, batch_size=1, verbose=0, callbacks=callbacks)
    assert seen == [1, "train", 2, "train", "commit", 3, "train", "commit"]
    assert state._commits == 2
