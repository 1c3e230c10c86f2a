# SPDX-License-Identifier: Apache-2.0
"""A job in which a rank keeps the others waiting. `stall_program.py WHAT RANKS_A_HOST`.

RANKS_A_HOST: so many ranks take themselves for one host. 0: the machine is one host.

train: small and large tensors, without an end
locked: rank 1 waits for a lock that nobody gives back
evaluate: all compute on their own, and end
timeout: steps of a session with a timeout on rank 0. One fails, then others are well
pauses: steps, of which the last begins late on rank 1, because a call holds the interpreter
mismatch: each rank gives a tensor a name of its own, in an eager call and in a tf.function
"""

import ctypes
import os
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

import tensorflow as tf  # noqa: E402

import hvd_tf as hvd  # noqa: E402

HOLD_S = 4
TIMEOUT_S = 1.0
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


def trains_in_a_session() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        # The peer may have had all that it needed for the step that fails here. Then it is a step
        # ahead. So all go on until they see in the same step that one of them has failed.
        failed = v1.placeholder(tf.float32, [])
        failures = hvd.allreduce(failed, op=hvd.Sum, name="failures")
        sums = [hvd.allreduce(tf.ones([n]), op=hvd.Sum, name=f"v{n}") for n in COUNTS]
        options = v1.RunOptions(timeout_in_ms=int(1000 * TIMEOUT_S)) if RANK == 0 else None
        has_failed = ended = False
        while not ended:
            begin_s = time.monotonic()
            try:
                count, *values = session.run(
                    [failures, *sums], {failed: float(has_failed)}, options=options
                )
            except tf.errors.OpError as error:
                seconds = time.monotonic() - begin_s
                print(f"{type(error).__name__} after {seconds:.2f} s", flush=True)
                has_failed, options = True, None
                continue
            ended = count > 0
            assert all((value == hvd.size()).all() for value in values)


def holds_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(HOLD_S)


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


hvd.init()
train_one_step()
print("started", flush=True)
if WHAT == "train":
    while True:
        train_one_step()
elif WHAT == "locked":
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
