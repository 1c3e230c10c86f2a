# SPDX-License-Identifier: Apache-2.0
"""Times what users' programs call, through the interface of Horovod: one rank of a job.

    hvdrun -np 2 python everyday.py hvd_tf
    mpirun -n 2 python everyday.py horovod.tensorflow

Run both by turns. The models are small, so that a step is mostly the library's time and
TensorFlow's own. Prints milliseconds on rank 0: the median of each call, or the time of what is
done once. A step of training has the same without the library beside it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
Call = Callable[[], Any]
LAYERS, UNITS, BATCH = 10, 64, 32
TABLES, IDS, LOOKED_UP = 8, 10_000, 256
STEPS = 200


def median_ms(call: Call, times: int) -> float:
    """The median of `times` calls, behind a tenth as many that warm up."""
    found = []
    for _ in range(times // 10 + 1 + times):
        begin = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(found[-times:])


def eager_calls(hvd: ModuleType) -> Iterator[tuple[str, Call, int]]:
    small, large = tf.ones([1]), tf.ones([1 << 18])
    group = [tf.ones([64]) for _ in range(100)]
    slices = tf.IndexedSlices(tf.ones([64, 8]), tf.range(64), tf.constant([1000, 8]))
    weights = {"weights": np.ones(12 << 20, np.float32)}
    epoch = {"epoch": 3, "best": 0.71}
    variables = [tf.Variable(tf.ones([64, 64])) for _ in range(100)]
    yield "allreduce 4 B", lambda: hvd.allreduce(small, name="small"), 300
    yield "allreduce 1 MB", lambda: hvd.allreduce(large, name="large"), 100
    yield "grouped_allreduce, 100", lambda: hvd.grouped_allreduce(group, name="group"), 100
    yield "allreduce, 64 rows of 8", lambda: hvd.allreduce(slices, name="slices"), 100
    yield "allgather 1 MB", lambda: hvd.allgather(large, name="rows"), 100
    yield "broadcast_variables, 100", lambda: hvd.broadcast_variables(variables, 0), 30
    yield "broadcast_object, small", lambda: hvd.broadcast_object(epoch, 0), 30
    yield "broadcast_object, 48 MB", lambda: hvd.broadcast_object(weights, 0), 5
    yield "allgather_object, small", lambda: hvd.allgather_object(epoch), 30


def dense_model() -> Any:
    hidden = [tf.keras.layers.Dense(UNITS, activation="relu") for _ in range(LAYERS)]
    return tf.keras.Sequential([tf.keras.Input([UNITS]), *hidden, tf.keras.layers.Dense(1)])


def batch() -> tuple[Any, Any]:
    return tf.random.normal([BATCH, UNITS]), tf.random.normal([BATCH, 1])


def tape_step(hvd: Any) -> Call:
    """A step of a loop of the user's; without `hvd` a plain one."""
    model, optimizer, (features, labels) = dense_model(), tf.keras.optimizers.SGD(1e-3), batch()

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features, training=True) - labels) ** 2)
        recorded = hvd.DistributedGradientTape(tape) if hvd else tape
        gradients = recorded.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return step


class Times(tf.keras.callbacks.Callback):
    """Milliseconds until the first batch of `fit` is done, and of a step of the last epoch."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.begin = time.perf_counter()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch_begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not hasattr(self, "first_ms"):
            self.first_ms = 1e3 * (time.perf_counter() - self.begin)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.step_ms = 1e3 * (time.perf_counter() - self.epoch_begin) / STEPS


def fit(optimizer: Any, keras: Any) -> Times:
    """Three epochs with the usual callbacks; without `keras`, the library's, plain ones."""
    model, times, callbacks = dense_model(), Times(), []
    if keras:
        optimizer = keras.DistributedOptimizer(optimizer)
        callbacks = [
            keras.callbacks.BroadcastGlobalVariablesCallback(0),
            keras.callbacks.MetricAverageCallback(),
        ]
    model.compile(optimizer, "mse", metrics=["mae"])
    dataset = tf.data.Dataset.from_tensors(batch()).repeat()
    used = [*callbacks, times]
    model.fit(dataset, steps_per_epoch=STEPS, epochs=3, verbose=0, callbacks=used)
    return times


def session_ms(hvd: Any, sparse: bool) -> float:
    """A step of a MonitoredTrainingSession; without `hvd` a plain one."""
    with tf.Graph().as_default():
        hidden = tf.random.normal([BATCH, UNITS])
        for i in range(LAYERS):
            hidden = tf.nn.relu(hidden @ v1.get_variable(f"weights{i}", [UNITS, UNITS]))
        loss = tf.reduce_mean(hidden**2)
        for i in range(TABLES if sparse else 0):
            table = v1.get_variable(f"table{i}", [IDS, 8])
            ids = tf.random.uniform([LOOKED_UP], 0, IDS, tf.int32)
            loss += tf.reduce_mean(tf.nn.embedding_lookup(table, ids))
        optimizer = v1.train.AdagradOptimizer(0.01)
        if hvd:
            optimizer = hvd.DistributedOptimizer(optimizer)
        train = optimizer.minimize(loss, v1.train.get_or_create_global_step())
        hooks = [hvd.BroadcastGlobalVariablesHook(0)] if hvd else []
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            return median_ms(lambda: session.run(train), STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", help="hvd_tf or horovod.tensorflow")
    module = parser.parse_args().module
    hvd, keras = importlib.import_module(module), importlib.import_module(f"{module}.keras")
    begin = time.perf_counter()
    hvd.init()
    init_ms = 1e3 * (time.perf_counter() - begin)
    rank, size = hvd.rank(), hvd.size()

    def show(what: str, ms: float, plain_ms: float | None = None) -> None:
        if rank == 0:
            plain = "" if plain_ms is None else f"{plain_ms:10.3f} ms plain"
            print(f"{what:34}{ms:10.3f} ms{plain}", flush=True)

    if rank == 0:
        print(f"{module}, {size} rank(s), TensorFlow {tf.__version__}, medians")
    show("init", init_ms)
    for what, call, times in eager_calls(hvd):
        show(what, median_ms(call, times))
    show("tape, eager step", median_ms(tape_step(hvd), 50), median_ms(tape_step(None), 50))
    traced, plain = tf.function(tape_step(hvd)), tf.function(tape_step(None))
    show("tape, step of a tf.function", median_ms(traced, STEPS), median_ms(plain, STEPS))
    families = {"": tf.keras.optimizers, "legacy ": getattr(tf.keras.optimizers, "legacy", None)}
    for family, optimizers in families.items():
        if not hasattr(optimizers, "Adam"):
            continue  # Keras 3 has no legacy ones.
        ours, alone = fit(optimizers.Adam(), keras), fit(optimizers.Adam(), None)
        show(f"fit, {family}Adam: a step", ours.step_ms, alone.step_ms)
        show(f"fit, {family}Adam: the first batch", ours.first_ms, alone.first_ms)
    for what, sparse in (("dense", False), ("dense and 8 tables", True)):
        show(f"v1 session, {what}", session_ms(hvd, sparse), session_ms(None, sparse))


if __name__ == "__main__":
    main()
