# SPDX-License-Identifier: Apache-2.0
"""A training program of which some ranks go wrong: `exception_program.py PLACE WHAT RANK ...`.

PLACE is where they are then: a function below. WHAT is what they do: a key of WHATS. Variables of
the environment: MPI4PY=first or last imports mpi4py before or after hvd_tf. HOOK=1 sets
sys.excepthook first. REWORD=1 takes the words out of TensorFlow's errors before hvd_tf sees them.
PATIENT=1 gives the peers all the time that they need: the grace of the first RANK ends when the
test makes the file `go`.
"""

import contextlib
import importlib
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

if os.environ.get("MPI4PY") == "first":
    importlib.import_module("mpi4py.MPI")

import numpy as np
import tensorflow as tf

import hvd_tf as hvd

if os.environ.get("MPI4PY") == "last":
    importlib.import_module("mpi4py.MPI")

PLACE, WHAT = sys.argv[1:3]
RANKS = [int(argument) for argument in sys.argv[3:]]
STEPS = 200
BAD_STEP = 3

v1 = tf.compat.v1


def interrupt() -> None:
    raise KeyboardInterrupt


def fail() -> None:
    raise ValueError("wrong shoe size\nsecond line")


def shut_down() -> None:
    hvd.shutdown()
    sys.exit()


WHATS = {
    "fail": fail,
    "exit": lambda: sys.exit(3),
    "leave": sys.exit,
    "interrupt": interrupt,
    "shutdown": shut_down,
}


def my_rank() -> int:
    if hvd.is_initialized():
        return hvd.rank()
    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
    return next(int(os.environ[name]) for name in names if name in os.environ)


def maybe_go_wrong(step: int) -> None:
    if step == BAD_STEP and my_rank() in RANKS:
        print("going wrong", flush=True)
        WHATS[WHAT]()


def before_init() -> None:
    maybe_go_wrong(BAD_STEP)
    hvd.init()
    hvd.allreduce(tf.ones([4]), name="x")


def in_init() -> None:
    wrong = my_rank() in RANKS
    if wrong:
        print(f"going wrong at {time.time():.3f}", flush=True)
    hvd.init(comm=[1 - my_rank()] if wrong else [0, 1])


def in_second_init() -> None:
    hvd.init()
    hvd.allreduce(tf.ones([4]), name="x")
    hvd.shutdown()
    in_init()


def late_for_init() -> None:
    hvd.init()
    hvd.allreduce(tf.ones([4]), name="x")
    hvd.shutdown()
    # For the second init alone. In the first one a rank may be late for its imports.
    for name in ("HVD_STALL_WARNING_S", "HVD_STALL_SHUTDOWN_S"):
        if f"SECOND_{name}" in os.environ:
            os.environ[name] = os.environ[f"SECOND_{name}"]
    if my_rank() in RANKS:
        print(f"going wrong at {time.time():.3f}", flush=True)
        while not Path(os.environ["HVD_TEST_DIR"], "go").exists():
            time.sleep(0.01)
    hvd.init()


def after_shutdown() -> None:
    hvd.init()
    hvd.allreduce(tf.ones([4]), name="x")
    hvd.shutdown()
    maybe_go_wrong(BAD_STEP)


def between_inits() -> None:
    after_shutdown()
    hvd.init()


def eager() -> None:
    hvd.init()
    for step in range(STEPS):
        maybe_go_wrong(step)
        hvd.allreduce(tf.ones([4]), name="x")


def elastic() -> None:
    hvd.init()

    @hvd.elastic.run
    def train(state: hvd.elastic.ObjectState) -> None:
        while state.step < STEPS:
            maybe_go_wrong(state.step)
            hvd.allreduce(tf.ones([4]), name="x")
            state.step += 1

    train(hvd.elastic.ObjectState(step=0))


def elastic_all() -> None:
    """The others go back to the commit at the time when one goes wrong. LATE=1: it hears of it."""
    hvd.init()

    @hvd.elastic.run
    def train(state: hvd.elastic.ObjectState) -> None:
        hvd.barrier()
        if my_rank() not in RANKS:
            raise hvd.exceptions.HorovodInternalError("tried")
        if os.environ.get("LATE"):
            # A call that it makes alone ends when it hears that they have gone back.
            with contextlib.suppress(tf.errors.OpError):
                hvd.allreduce(tf.ones([4]), name="alone")
        maybe_go_wrong(BAD_STEP)

    train(hvd.elastic.ObjectState(step=0))


def endless() -> None:
    hvd.init()
    print("pid", os.getpid(), flush=True)
    for step in itertools.count():
        hvd.allreduce(tf.ones([4]), name="x")
        if step == BAD_STEP:
            print("step", step, flush=True)


def slow_peers() -> None:
    """The others do not notice: they compute."""
    hvd.init()
    hvd.allreduce(tf.ones([4]), name="x")
    maybe_go_wrong(BAD_STEP)
    time.sleep(1000)


def _model(features: tf.Tensor) -> tuple:
    with v1.variable_scope("model"):
        weights = v1.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - 1.0))
    step = v1.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))
    return loss, optimizer.minimize(loss, global_step=step)


def session() -> None:
    hvd.init()
    with tf.Graph().as_default():
        _, train = _model(tf.constant(np.ones((8, 4), np.float32)))
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as sess:
            for step in range(STEPS):
                maybe_go_wrong(step)
                sess.run(train)


def estimator() -> None:
    hvd.init()
    hvd.estimator.provide_tf_estimator()

    def batches():
        for step in range(STEPS):
            maybe_go_wrong(step)
            yield np.ones((8, 4), np.float32)

    def input_fn():
        return tf.data.Dataset.from_generator(batches, tf.float32, [8, 4])

    def model_fn(features, mode):
        loss, train = _model(features)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    config = tf.estimator.RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None)
    # In the working directory, for a temporary one would outlive the job.
    model = tf.estimator.Estimator(model_fn, f"model-{hvd.rank()}", config)
    model.train(input_fn, hooks=[hvd.BroadcastGlobalVariablesHook(0)])


def reword_first() -> None:
    hook = sys.excepthook

    def reword(kind, value, trace):
        link = value
        while link is not None:
            if isinstance(link, tf.errors.OpError):
                link._message, link.args = "other words", ()
            link = link.__cause__ or link.__context__
        hook(kind, value, trace)

    sys.excepthook = reword


def be_patient() -> None:
    """Whatever waits for a time of its own waits for the test or for what has to come instead."""
    from hvd_tf._internal import failure

    def sleep(seconds: float) -> None:
        is_grace = seconds > 1 and threading.current_thread() is threading.main_thread()
        if not is_grace or my_rank() != RANKS[0]:
            time.sleep(seconds)
            return
        while not Path(os.environ["HVD_TEST_DIR"], "go").exists():
            time.sleep(0.01)

    failure._PEER_WORDS_S = 1000.0
    failure.time = SimpleNamespace(**{**vars(time), "sleep": sleep})


if os.environ.get("PATIENT"):
    be_patient()
if os.environ.get("REWORD"):
    hvd.is_initialized()  # hvd_tf has its hook now
    reword_first()
if os.environ.get("HOOK"):
    sys.excepthook = lambda kind, value, trace: print(f"my hook: {kind.__name__}", flush=True)
globals()[PLACE]()
print("finished", flush=True)
