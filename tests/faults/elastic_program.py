# SPDX-License-Identifier: Apache-2.0
"""An elastic training whose last rank dies once. Rank 0 shows the end."""

from __future__ import annotations

import os
import signal
import sys

import tensorflow as tf

import hvd_tf as hvd

hvd.init()
weights = tf.Variable(tf.ones([3]))
state = hvd.elastic.TensorFlowState([weights], step=0)


@hvd.elastic.run
def train(state: hvd.elastic.TensorFlowState) -> None:
    print(*sys.argv[1:], f"begins at {state.step}", flush=True)
    while state.step < 8:
        if state.step == 5 and os.environ["HVD_RESTART"] == "0":
            if hvd.rank() == hvd.size() - 1 and os.environ.get("KILLED") != "0":
                os.kill(os.getpid(), signal.SIGKILL)
        gradient = hvd.allreduce(weights * (1.0 + hvd.rank()), name="gradient")
        weights.assign_sub(0.1 * gradient)
        state.step += 1
        if state.step % 2 == 0:
            state.commit()


train(state)
if hvd.rank() == 0:
    print(f"ended with {weights.numpy().tolist()}")
