# SPDX-License-Identifier: Apache-2.0
"""A job to kill a rank of: it says which phase it is in. `kill_program.py RANKS_A_HOST PHASE RANK`.

RANKS_A_HOST: so many ranks take themselves for one host. 0: the machine is one host.
PHASE, RANK: where which rank is to be killed. Until then it does not go on to the next one.
"""

import itertools
import math
import os
import sys
import time
from pathlib import Path

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
RANKS_A_HOST, PHASE, VICTIM = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if RANKS_A_HOST:
    os.environ["HVD_HOST_ID"] = f"host{RANK // RANKS_A_HOST}"
Path(os.environ["HVD_TEST_DIR"], f"rank-{RANK}.pid").write_text(str(os.getpid()))
print("phase import", flush=True)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd_tf as hvd  # noqa: E402

BATCHES_S = 1.5
COUNTS = (1, 1000, 300_000, 2_000_000)


@tf.function(autograph=False)
def step(x: tf.Tensor) -> list[tf.Tensor]:
    sums = [hvd.allreduce(x * tf.ones([count]), op=hvd.Sum, name=f"s{count}") for count in COUNTS]
    return [*sums, hvd.allgather(tf.ones([1000 + 10 * RANK]), name="rows")]


def go_on(end_s: float) -> bool:
    """Whether rank 0 has time left. Every rank gets the same answer."""
    return bool(hvd.broadcast(np.float32(end_s - time.monotonic()), 0, name="left") > 0)


while PHASE == "import" and RANK == VICTIM:
    time.sleep(0.01)  # the others wait for it in init()
print("phase init", flush=True)
hvd.init()
step(tf.constant(1.0))  # traced
print("phase batches", flush=True)
end_s = time.monotonic() + (BATCHES_S if PHASE in ("shutdown", "exit") else math.inf)
while go_on(end_s):
    for tensor in step(tf.constant(1.0))[:-1]:
        assert (tensor.numpy() == hvd.size()).all()
print("phase shutdown", flush=True)
for _ in itertools.count() if PHASE == "shutdown" else range(10):
    hvd.shutdown()
    hvd.init()
    hvd.allreduce(1.0, name="again")
hvd.shutdown()
print("phase exit", flush=True)
