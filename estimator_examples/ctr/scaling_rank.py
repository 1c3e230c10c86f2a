# SPDX-License-Identifier: Apache-2.0
"""One process of a run of scaling.py: trains an Estimator and notes how long its steps take.

The library is hvd_tf, horovod.tensorflow or none. The optimizer's wrapper and the hook that
broadcasts the variables are all that differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# The session's own configuration does not set the pool that computes matrix products.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1] / "flights"))

import canned
import rows
import tensorflow as tf
from layers import Sizes
from models import model_fn
from starting import limit_threads
from training import ACCUMULATOR, Settings

v1 = tf.compat.v1

# As launchers name the number of a rank on its host.
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def pin(process: int) -> None:
    """Keep this process and all of its threads on a core of its own, where there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    local = next((int(os.environ[name]) for name in LOCAL_RANK if name in os.environ), process)
    os.sched_setaffinity(0, {cores[local % len(cores)]})


def arguments() -> argparse.Namespace:
    """The command line that scaling.py writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--library", default="none")
    add("--process", type=int, default=0)
    add("--processes", type=int, default=1)
    for name in ("data", "out"):
        add(f"--{name}", type=Path, required=True)
    for name in ("batch", "ids", "dimension", "steps", "warm-up"):
        add(f"--{name}", type=int, required=True)
    add("--model", required=True)
    add("--activation", required=True)
    add("--pinned", action="store_true")
    return parser.parse_args()


class Steps(v1.train.SessionRunHook):
    """The moments at which steps have ended, and what was sent after the first `skip` ones."""

    def __init__(self, hvd: Any, skip: int) -> None:
        self.ends_s: list[float] = []
        self._skip = skip
        self._stats = getattr(hvd, "comm_stats", lambda: None)
        self.stats: list[Any] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if len(self.ends_s) == self._skip:
            self.stats.append(self._stats())
        self.ends_s.append(time.perf_counter())

    def end(self, session: v1.Session) -> None:
        self.stats.append(self._stats())

    def times_ms(self) -> list[float]:
        """From the end of a step to the end of the next."""
        ends = self.ends_s[self._skip :]
        return [1e3 * (after - before) for before, after in zip(ends, ends[1:])]

    def sent(self) -> Optional[dict[str, float]]:
        """Bytes that this rank sends in a step; None where the library does not count them."""
        before, after = self.stats
        if after is None:
            return None
        steps = len(self.ends_s) - self._skip - 1

        def of_verbs(stats: Any, key: str) -> int:
            return sum(verb[key] for verb in stats["verbs"].values())

        found = {
            key: of_verbs(after, key) - of_verbs(before, key)
            for key in ("payload_bytes", "header_bytes", "collectives")
        }
        found["control_bytes"] = after["control_bytes_sent"] - before["control_bytes_sent"]
        return {key: value / steps for key, value in found.items()}


def batches(args: argparse.Namespace, process: int, processes: int) -> tf.data.Dataset:
    """This process's batches, over and over again out of memory: reading is no part of a step."""
    records = tf.data.TFRecordDataset(rows.files(args.data, "train")).shard(processes, process)
    made = records.batch(rows.blocks_of(args.batch), drop_remainder=True).map(rows.decode)
    if args.model == canned.NAME:
        made = made.map(lambda *batch: canned.by_feature(*batch, args.ids))
    return rows.untuned(made.take(args.warm_up).cache().repeat())


def input_ms(dataset: tf.data.Dataset, count: int) -> float:
    """A batch without a training."""
    times_s = []
    iterator = iter(dataset)
    for _ in range(2 * count):  # the first ones read the files
        begin = time.perf_counter()
        next(iterator)
        times_s.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times_s[count:])


def trained(args: argparse.Namespace, hvd: Any, share: rows.InputFn) -> Steps:
    """Train for the steps to be timed, and those before."""
    wrapped = args.library != "none"

    def optimizer() -> v1.train.Optimizer:
        adagrad = v1.train.AdagradOptimizer(Settings.lr, initial_accumulator_value=ACCUMULATOR)
        return hvd.DistributedOptimizer(adagrad) if wrapped else adagrad

    sizes = Sizes(ids=args.ids, dimension=args.dimension, activation=args.activation)
    threads = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}
    is_canned = args.model == canned.NAME
    steps = Steps(hvd, args.warm_up)
    with tempfile.TemporaryDirectory() as folder:
        config = tf.estimator.RunConfig(
            model_dir=folder,
            save_checkpoints_secs=None,
            save_summary_steps=None,
            log_step_count_steps=None,
            session_config=(
                canned.session_config(threads) if is_canned else v1.ConfigProto(**threads)
            ),
        )
        if is_canned:
            estimator = canned.estimator(sizes, optimizer, config)
        else:
            params = {"model": args.model, "sizes": sizes, "optimizer": optimizer}
            estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)] if wrapped else []
        # A first step more, whose end is the beginning of those that are timed.
        estimator.train(share, hooks=[*hooks, steps], steps=args.warm_up + args.steps + 1)
    return steps


def main() -> None:
    """Train, and write what was measured."""
    args = arguments()
    v1.logging.set_verbosity(v1.logging.ERROR)
    if args.pinned:
        pin(args.process)  # threads that are started later inherit it
    limit_threads(1)
    process, processes, hvd = args.process, args.processes, None
    if args.library != "none":
        hvd = importlib.import_module(args.library)
        hvd.init()
        process, processes = hvd.rank(), hvd.size()

    def share() -> tf.data.Dataset:
        return batches(args, process, processes)

    steps = trained(args, hvd, share)
    found = {
        "step_ms": statistics.median(steps.times_ms()),
        "input_ms": input_ms(share(), args.warm_up),
        "sent": steps.sent(),
    }
    (args.out / f"{process}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
