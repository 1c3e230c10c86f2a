# SPDX-License-Identifier: Apache-2.0
"""Compares ways of training a dense Keras model by turns in the same processes: one rank of a job.

    hvdrun -np 2 python keras_pairs.py hvd_tf.keras
    hvdrun -np 1 python keras_pairs.py hvd_tf.keras
    mpirun -n 2 python keras_pairs.py horovod.tensorflow.keras

The model has the layers 784-2048-2048-10. Each way is a `fit` of some steps. They take turns, so
that other load on the machine affects all of them alike. Each round gives its own ratios. The ways:

    alone        rank 0 trains with a plain optimizer; the other ranks wait
    independent  every rank does that, at the same time
    together     every rank trains with DistributedOptimizer, and the usual callbacks

Prints the medians of a step's milliseconds and the median ratios of the rounds, with their
quartiles. A `fit` of one rank has the callbacks too, so that "together" of one rank is their cost.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import numpy as np
import tensorflow as tf

WIDTHS = (784, 2048, 2048, 10)
WAYS = ("alone", "independent", "together")


class StepTimes(tf.keras.callbacks.Callback):
    """Milliseconds from the beginning of a batch to that of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.begins: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.begins.append(1e3 * time.perf_counter())

    def median_ms(self) -> float:
        return statistics.median(np.diff(self.begins))


class Trainer:
    """A model of its own, with the data of one batch."""

    def __init__(self, rank: int, batch: int, hvd: Any = None) -> None:
        generator = np.random.default_rng(rank)
        features = generator.standard_normal((batch, WIDTHS[0]), np.float32)
        labels = generator.integers(0, WIDTHS[-1], batch)
        self._dataset = tf.data.Dataset.from_tensors((features, labels)).cache().repeat()
        hidden = [tf.keras.layers.Dense(width, activation="relu") for width in WIDTHS[1:-1]]
        layers = [tf.keras.Input([WIDTHS[0]]), *hidden, tf.keras.layers.Dense(WIDTHS[-1])]
        self._model = tf.keras.Sequential(layers)
        optimizer = tf.keras.optimizers.SGD(0.01)
        self._callbacks: list[Any] = []
        if hvd:
            optimizer = hvd.DistributedOptimizer(optimizer)
            self._callbacks = [
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
            ]
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile(optimizer, loss)

    def fit_ms(self, steps: int) -> float:
        times = StepTimes()
        used = [*self._callbacks, times]
        self._model.fit(self._dataset, steps_per_epoch=steps, verbose=0, callbacks=used)
        return times.median_ms()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", help="hvd_tf.keras or horovod.tensorflow.keras")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=15, help="steps of a fit")
    parser.add_argument("--batch", type=int, default=256, help="examples of a rank")
    arguments = parser.parse_args()
    hvd = importlib.import_module(arguments.module)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    plain = Trainer(rank, arguments.batch)
    wrapped = Trainer(rank, arguments.batch, hvd)
    rounds: list[dict[str, float]] = []
    for _ in range(arguments.rounds + 1):
        found = {}
        for way in WAYS:
            hvd.allreduce(0.0, name="turn")
            if way == "together":
                found[way] = wrapped.fit_ms(arguments.steps)
            elif way == "independent" or rank == 0:
                found[way] = plain.fit_ms(arguments.steps)
        rounds.append(found)
    if rank:
        return
    rounds = rounds[1:]  # the first one traced
    print(f"{arguments.module}, {size} rank(s), TensorFlow {tf.__version__}, medians")
    for way in WAYS:
        times = [found[way] for found in rounds]
        ratios = sorted(found["alone"] / found[way] for found in rounds)
        low, _, high = statistics.quantiles(ratios, n=4)
        print(
            f"{way:12} {statistics.median(times):7.1f} ms a step, speed against alone "
            f"{statistics.median(ratios):.3f} ({low:.3f}-{high:.3f})"
        )


if __name__ == "__main__":
    main()
