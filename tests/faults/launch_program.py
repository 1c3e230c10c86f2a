# SPDX-License-Identifier: Apache-2.0
"""A job without an end, for the faults of a launcher. `launch_program.py [late|plain|saves|outer]`.

late: rank 1 never calls init()
plain: a program of MPI alone, which starts within a second
saves: a program without MPI, whose rank 0 takes a second to end when it is told to
outer: rank 1 starts a job by hvdrun, and is killed when that runs
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
Path(os.environ["HVD_TEST_DIR"], f"rank-{RANK}.pid").write_text(str(os.getpid()))

import numpy as np  # noqa: E402

ONES = np.ones(1000, np.float32)


def plain() -> None:
    from mpi4py import MPI

    total = np.empty_like(ONES)
    print("started 0", flush=True)
    while True:
        MPI.COMM_WORLD.Allreduce(ONES, total)
        assert (total == MPI.COMM_WORLD.size).all()


def train() -> None:
    import hvd_tf as hvd

    hvd.init()
    print(f"started {os.environ['HVD_RESTART']}", flush=True)
    while True:
        total = hvd.allreduce(ONES, op=hvd.Sum, name="ones")
        assert (total.numpy() == hvd.size()).all()


def save(number: int, frame: object) -> None:
    time.sleep(1)
    print("saved", flush=True)
    sys.exit()


def start_a_job() -> None:
    command = [sys.executable, "-m", "hvd_tf.launch", "-np", "2", sys.executable, __file__, "plain"]
    # It does not hold this rank's output, for which mpirun would wait.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as job:
        assert job.stdout is not None
        print(job.stdout.readline().decode(), end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if WHAT == "outer":
    if RANK == 1:
        start_a_job()
    time.sleep(1000)
if WHAT == "saves":
    if RANK == 0:
        signal.signal(signal.SIGTERM, save)
    print("started 0", flush=True)
    time.sleep(1000)
if WHAT == "plain":
    plain()
if WHAT == "late" and RANK == 1:
    print("asleep", flush=True)
    time.sleep(1000)
train()
