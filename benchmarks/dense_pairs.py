# SPDX-License-Identifier: Apache-2.0
"""Compares ways of training a dense model by turns in the same processes: one rank of a job.

    hvdrun -np 2 python dense_pairs.py hvd_tf
    hvdrun -np 1 python dense_pairs.py hvd_tf
    mpirun -n 2 python dense_pairs.py horovod.tensorflow

The model is that of dense_session.py. Blocks of steps take turns, so that other load on the machine
affects all of them alike. Each round gives its own ratios. The ways are:

    alone        rank 0 trains with a plain optimizer; the other ranks wait
    independent  every rank does that, at the same time
    in step      the same, but the ranks meet after each step: an allreduce of four bytes
    together     every rank trains with DistributedOptimizer
    ended        with one rank: like alone, between shutdown and init

Prints the medians in milliseconds and the median ratios of the rounds, with their quartiles.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from collections.abc import Callable
from types import ModuleType

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import tensorflow as tf
from dense_session import WIDTHS, loss_of

v1 = tf.compat.v1


class Trainer:
    """A session of its own that trains the model."""

    def __init__(self, module: ModuleType | None, rank: int, batch: int) -> None:
        generator = np.random.default_rng(rank)
        features = generator.standard_normal((batch, WIDTHS[0]), np.float32)
        labels = generator.integers(0, WIDTHS[-1], batch)
        with tf.Graph().as_default():
            loss = loss_of(tf.constant(features), tf.constant(labels))
            optimizer = v1.train.GradientDescentOptimizer(0.01)
            hooks = []
            if module:
                optimizer = module.DistributedOptimizer(optimizer)
                hooks = [module.BroadcastGlobalVariablesHook(0)]
            self._train = optimizer.minimize(loss, v1.train.get_or_create_global_step())
            config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
            self._session = v1.train.MonitoredTrainingSession(hooks=hooks, config=config)

    def median_ms(self, steps: int, after_each: Callable[[], None] = lambda: None) -> float:
        times_ms = []
        for _ in range(steps):
            begin = time.perf_counter()
            self._session.run(self._train)
            after_each()
            times_ms.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", help="hvd_tf or horovod.tensorflow")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10, help="steps of a block")
    parser.add_argument("--batch", type=int, default=256, help="examples of a rank")
    arguments = parser.parse_args()
    module = importlib.import_module(arguments.module)
    module.init()
    rank, size = module.rank(), module.size()
    plain = Trainer(None, rank, arguments.batch)
    wrapped = Trainer(module, rank, arguments.batch)

    def barrier() -> None:
        module.allreduce(tf.zeros([]), name="barrier")

    def alone() -> float:
        barrier()
        block_ms = plain.median_ms(arguments.steps) if rank == 0 else 0.0
        barrier()
        return block_ms

    def independent() -> float:
        barrier()
        return plain.median_ms(arguments.steps)

    def in_step() -> float:
        barrier()
        return plain.median_ms(arguments.steps, after_each=barrier)

    def together() -> float:
        barrier()
        return wrapped.median_ms(arguments.steps)

    def ended() -> float:
        module.shutdown()
        block_ms = plain.median_ms(arguments.steps)
        module.init()
        return block_ms

    ways = {"alone": alone, "together": together}
    ways |= {"independent": independent, "in step": in_step} if size > 1 else {"ended": ended}
    results: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.rounds + 1):
        order = list(ways)[:: 1 if turn % 2 else -1]
        for name in order:
            block_ms = ways[name]()
            if turn:  # The first round warms up.
                results[name].append(block_ms)
    if rank == 0:
        print(f"{arguments.module}, {size} rank(s), {arguments.rounds} rounds")
        for name, blocks_ms in results.items():
            low, median, high = statistics.quantiles(blocks_ms, n=4)
            print(f"{name:12}{median:8.1f} ms [{low:.1f} - {high:.1f}] a step")
        report_ratio("together", "alone", results)
        for name in ("independent", "in step") if size > 1 else ("ended",):
            report_ratio("together", name, results)
            report_ratio(name, "alone", results)


def report_ratio(one: str, other: str, results: dict[str, list[float]]) -> None:
    ratios = [mine / its for mine, its in zip(results[one], results[other])]
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"{one} / {other}: {median:.3f} [{low:.3f} - {high:.3f}]")


if __name__ == "__main__":
    main()
