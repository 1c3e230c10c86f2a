# SPDX-License-Identifier: Apache-2.0
"""A rank ends in the middle of a job: `rank_end_program.py plain|hvd HOW`, where rank 1 does it.

plain: a program of MPI alone, which starts within a second
hvd: one that calls hvd_tf, and whose HOW may be `frozen`: stopped after its last step
"""

import ctypes
import os
import signal
import sys
import time

WHAT, HOW = sys.argv[1:]
NUMBERS = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "aborted": signal.SIGABRT}


def end() -> None:
    if HOW.startswith("sys.exit-"):
        sys.exit(int(HOW.removeprefix("sys.exit-")))
    if HOW.startswith("exit-"):
        os._exit(int(HOW.removeprefix("exit-")))
    if HOW == "segfault":
        ctypes.string_at(0)
    if HOW == "frozen":
        os.kill(os.getpid(), signal.SIGSTOP)
    if HOW in NUMBERS:
        os.kill(os.getpid(), NUMBERS[HOW])


def plain() -> None:
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 1:
        end()
    if HOW == "exit-0":
        time.sleep(0.5)
    MPI.COMM_WORLD.Barrier()


def hvd() -> None:
    # It is the launcher's here. A rank that is slow in its first step would run into its own.
    os.environ.pop("HVD_STALL_SHUTDOWN_S", None)
    import hvd_tf

    hvd_tf.init()
    hvd_tf.allreduce(1.0, name="last step")
    if HOW == "all-exit-0":
        os._exit(0)
    if hvd_tf.rank() == 1:
        end()
    if HOW != "frozen":
        hvd_tf.allreduce(1.0, name="never")


{"plain": plain, "hvd": hvd}[WHAT]()
