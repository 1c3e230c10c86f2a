# SPDX-License-Identifier: Apache-2.0
"""A job in which a rank keeps the others waiting. `stall_program.py WHAT RANKS_A_HOST`.

RANKS_A_HOST: so many ranks take themselves for one host. 0: the machine is one host.

train: small and large tensors, without an end
locked: when told to, rank 1 waits for a lock that nobody gives back
evaluate: all compute on their own, and end
timeout: steps of a session. In one rank 1 freezes, and rank 0 has a timeout. Then others are well
pauses: steps, of which the last begins late on rank 1, because a call holds the interpreter
mismatch: each rank gives a tensor a name of its own, in an eager call and in a tf.function
"""

import ctypes
import itertools
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

WHAT, RANKS_A_HOST = sys.argv[1], int(sys.argv[2])
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
if RANKS_A_HOST:
    os.environ["HVD_HOST_ID"] = f"host{RANK // RANKS_A_HOST}"
JOB = Path(os.environ["HVD_TEST_DIR"])
(JOB / f"rank-{RANK}.pid").write_text(str(os.getpid()))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hvd_tf as hvd  # noqa: E402

# The step in which rank 1 freezes, with the timeout that rank 0 has in it.
FROZEN_STEP, TIMEOUT_S = 5, 1.0
LIMITS = ("HVD_STALL_WARNING_S", "HVD_STALL_SHUTDOWN_S", "HVD_MISMATCH_WARNING_S")
COUNTS = (1, 1000, 2_000_000)


@tf.function(autograph=False)
def step(x: tf.Tensor) -> list[tf.Tensor]:
    return [hvd.allreduce(x * tf.ones([n]), op=hvd.Sum, name=f"s{n}") for n in COUNTS]


def train_one_step() -> None:
    for tensor in step(tf.constant(1.0)):
        assert (tensor.numpy() == hvd.size()).all()


def told_to_go_on() -> bool:
    """The same on every rank."""
    return bool(hvd.broadcast(float((JOB / "go").exists()), 0, name="go") > 0)


def waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


class Freeze:
    """Freezes this process, once, a moment after it was asked for. Lasts until SIGCONT."""

    def __init__(self) -> None:
        self.was_asked_for = False
        self._is_over = threading.Event()

    def ask(self) -> None:
        self.was_asked_for = True
        threading.Thread(target=self._stop).start()

    def await_end(self) -> np.bool_:
        if self.was_asked_for:
            self._is_over.wait()
        return np.bool_(True)

    def _stop(self) -> None:
        time.sleep(random.Random(os.environ["SEED"]).uniform(0, 0.05))
        os.kill(os.getpid(), signal.SIGSTOP)
        self._is_over.set()


def trains_in_a_session() -> None:
    v1 = tf.compat.v1
    freeze = Freeze()
    with tf.Graph().as_default(), v1.Session() as session:
        # The peer may have had all that it needed for the step that fails here. Then it is a step
        # ahead. So all go on until they see in the same step that one of them has failed.
        failed = v1.placeholder(tf.float32, [])
        failures = hvd.allreduce(failed, op=hvd.Sum, name="failures")
        sums = [hvd.allreduce(tf.ones([n]), op=hvd.Sum, name=f"v{n}") for n in COUNTS]
        # Rank 0 cannot end the step without this one.
        with tf.control_dependencies([tf.numpy_function(freeze.await_end, [], tf.bool)]):
            sums.append(hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="last"))
        timeout = v1.RunOptions(timeout_in_ms=int(1000 * TIMEOUT_S))
        has_failed = False
        for step in itertools.count():
            if step == FROZEN_STEP and RANK == 1:
                freeze.ask()
            options = timeout if step == FROZEN_STEP and RANK == 0 else None
            try:
                count, *values = session.run(
                    [failures, *sums], {failed: float(has_failed)}, options=options
                )
            except tf.errors.OpError as error:
                print(type(error).__name__, flush=True)
                has_failed = True
                continue
            assert all((value == hvd.size()).all() for value in values)
            if count > 0:
                return


def holds_the_interpreter() -> None:
    """Until the test writes to the pipe."""
    pipe = os.open(JOB / "pipe", os.O_RDWR)
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)


def evaluates_alone() -> None:
    while not (JOB / "go").exists():
        time.sleep(0.01)


def allreduce_under_own_name(x: tf.Tensor) -> tf.Tensor:
    return hvd.allreduce(x, op=hvd.Sum, name=f"loss_{RANK}/total")


def names_differ() -> None:
    for kind, call in [
        ("eager", allreduce_under_own_name),
        ("function", tf.function(allreduce_under_own_name, autograph=False)),
    ]:
        try:
            call(tf.ones([3]))
        except tf.errors.FailedPreconditionError as error:
            print(f"{kind} call: {error.message}", flush=True)


# However long the first step takes, in which all is traced.
limits = {name: os.environ.pop(name) for name in LIMITS}
hvd.init()
train_one_step()
hvd.shutdown()
os.environ.update(limits)
hvd.init()
train_one_step()
print("started", flush=True)
if WHAT == "train":
    while True:
        train_one_step()
elif WHAT == "locked":
    evaluates_alone()
    if RANK == 1:
        waits_for_a_lock()
    train_one_step()
elif WHAT == "evaluate":
    evaluates_alone()
elif WHAT == "timeout":
    trains_in_a_session()
    train_one_step()
    print("all was right", flush=True)
elif WHAT == "mismatch":
    names_differ()
    train_one_step()
    print("all was right", flush=True)
elif WHAT == "pauses":
    while not told_to_go_on():
        train_one_step()
    if RANK == 1:
        holds_the_interpreter()
    train_one_step()
    print("all was right", flush=True)
