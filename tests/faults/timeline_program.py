# SPDX-License-Identifier: Apache-2.0
"""A job with a timeline. Rank 1 is killed in it. `timeline_program.py`."""

import os
import time
from pathlib import Path

import tensorflow as tf

import hvd_tf as hvd

hvd.init()
Path(os.environ["HVD_TEST_DIR"], f"rank-{hvd.rank()}.pid").write_text(str(os.getpid()))
count = 0
while True:
    # The name has the time at which it was asked for, in ms of the clock that all ranks share.
    asked_ms = hvd.broadcast(tf.constant(time.monotonic() * 1e3, tf.float64), 0, name="time")
    hvd.allreduce(1.0, name=f"at {int(asked_ms.numpy())}")
    count += 1
    if count == 100:
        print("under way", flush=True)
    time.sleep(0.002)
