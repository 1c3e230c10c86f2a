# SPDX-License-Identifier: Apache-2.0
"""Train wide-and-deep on the flights with tf.estimator: on one rank, or on many under mpirun.

    mpirun -n 2 python estimator_examples/flights/train.py

The lines marked `# hvd:` are what hvd_tf asks of an Estimator program.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from batches import positions, steps_of
from data import SPLITS, Flights, load, split
from features import CATEGORICAL
from hooks import Progress, Speed
from inputs import in_order, input_fn
from model import model_fn
from report import Report, compare, one_worker, text, write

v1 = tf.compat.v1
BASELINE_STEPS = 600
WARM_UP = 50  # steps that are not timed


def arguments(line: Optional[list[str]] = None) -> argparse.Namespace:
    """The command line, or what it would be for these words."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_flights"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data-dir", type=Path, default=cache, help="where the arrays are cached (%(default)s)")
    add("--model-dir", type=Path, help="checkpoints and report.json (a new folder in data-dir)")
    add("--passes", type=float, default=6.0, help="passes over the flights (%(default)s)")
    add("--steps", type=int, help="global steps, instead of passes")
    add("--batch", type=int, default=1024, help="flights per worker and step (%(default)s)")
    add("--lr", type=float, default=0.075, help="of Adagrad, for one worker (%(default)s)")
    add("--seed", type=int, default=1, help="of the weights and the shuffle (%(default)s)")
    add("--threads", type=int, default=1, help="per rank, 0: as many as cores (%(default)s)")
    add("--held-out", choices=SPLITS, default="test", help="see data.py (%(default)s)")
    add("--no-eval", action="store_true", help="only train")
    add("--no-baseline", action="store_true", help="do not measure one worker")
    add("--plain", action="store_true", help="one process without hvd_tf")
    return parser.parse_args(line)


def new_folder(args: argparse.Namespace) -> Path:
    """Where this run keeps its checkpoints; one with a checkpoint would start at another step."""
    if args.model_dir is None:
        return Path(tempfile.mkdtemp(dir=args.data_dir, prefix="model-"))
    if tf.train.latest_checkpoint(str(args.model_dir)):
        raise SystemExit(f"--model-dir {args.model_dir} holds a checkpoint: name a new folder")
    return args.model_dir


def library(plain: bool) -> ModuleType:
    """hvd_tf, or what stands in for it."""
    if plain:
        import alone as hvd
    else:
        import hvd_tf as hvd
    return hvd


def run_config(args: argparse.Namespace, rank: int) -> tf.estimator.RunConfig:
    """Threads per rank; checkpoints on the first rank only.

    Every rank draws other weights; they all start with rank 0's because those are broadcast.
    """
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    return tf.estimator.RunConfig(
        tf_random_seed=args.seed + rank,
        save_checkpoints_secs=300 if rank == 0 else None,
        save_summary_steps=None,
        log_step_count_steps=None,
        session_config=v1.ConfigProto(
            intra_op_parallelism_threads=args.threads, inter_op_parallelism_threads=args.threads
        ),
    )


def train(
    args: argparse.Namespace,
    hvd: ModuleType,
    part: Flights,
    model_dir: Path,
    watch: Sequence[v1.train.SessionRunHook] = (),
) -> tf.estimator.Estimator:
    """Train for args.steps global steps on this rank's share of every global batch."""
    rank, size = hvd.rank(), hvd.size()

    def optimizer() -> v1.train.Optimizer:
        falling = v1.train.polynomial_decay(
            args.lr * size,  # hvd: for size times the batch
            v1.train.get_global_step(),
            args.steps,
            end_learning_rate=0.0,
        )
        # Its default of 0.1 would all but freeze rows that few flights of a batch look up.
        adagrad = v1.train.AdagradOptimizer(falling, initial_accumulator_value=1e-3)
        return hvd.DistributedOptimizer(adagrad)  # hvd: averages the gradients over the ranks

    estimator = tf.estimator.Estimator(
        model_fn,
        model_dir=str(model_dir),
        config=run_config(args, rank),
        params={"fields": CATEGORICAL, "optimizer": optimizer},
    )
    share = input_fn(
        part, lambda: positions(len(part), args.batch, seed=args.seed, rank=rank, size=size)
    )
    hooks = [hvd.BroadcastGlobalVariablesHook(0), *watch]  # hvd: all start with rank 0's weights
    estimator.train(share, hooks=hooks, max_steps=args.steps)
    return estimator


def measured(args: argparse.Namespace, size: int, records: int, speed: Speed) -> Report:
    """What was trained and how fast."""
    settings = ("threads", "batch", "lr", "seed", "steps")
    return {
        "workers": size,
        **{name: getattr(args, name) for name in settings},
        "passes": args.steps * args.batch * size / records,
        "seconds": speed.seconds,
        "steps_per_s": speed.steps_per_s,
        "examples_per_s": speed.steps_per_s * args.batch * size,
    }


def finish(
    args: argparse.Namespace, estimator: tf.estimator.Estimator, report: Report, held_out: Flights
) -> None:
    """On rank 0, while the others wait: evaluate, measure one worker, print and keep the report."""
    if not args.no_eval:
        metrics = estimator.evaluate(in_order(held_out))
        report.update({k: float(metrics[k]) for k in ("auc", "log_loss", "accuracy")})
        report["held_out"] = args.held_out
    if report["workers"] > 1 and not args.no_baseline:
        same = ("data_dir", "batch", "lr", "seed", "threads", "held_out")
        options = [f"--{k.replace('_', '-')}={getattr(args, k)}" for k in same]
        single = one_worker(Path(__file__), [*options, f"--steps={BASELINE_STEPS}"])
        compare(report, single)
    write(Path(estimator.model_dir), report)
    print(text(report))
    print(f"checkpoints and report.json: {estimator.model_dir}")


def main() -> None:
    """Train, then let rank 0 report."""
    args = arguments()
    v1.logging.set_verbosity(v1.logging.ERROR)
    hvd = library(args.plain)
    hvd.init()  # hvd: before anything else of the library
    part, held_out = split(load(args.data_dir), args.held_out)
    rank, size = hvd.rank(), hvd.size()
    if args.steps is None:  # hvd: a step of all ranks takes size times the records
        args.steps = steps_of(args.passes, len(part), args.batch, size)
    speed = Speed(min(WARM_UP, args.steps // 2))
    with tempfile.TemporaryDirectory() as scratch:
        first = rank == 0  # hvd: checkpoints, progress and report on one rank only
        model_dir = new_folder(args) if first else Path(scratch)
        watch = [speed, Progress(args.steps)] if first else [speed]
        estimator = train(args, hvd, part, model_dir, watch)
        report = measured(args, size, len(part), speed)
        if first:
            finish(args, estimator, report, held_out)
        hvd.broadcast_object(report, 0)  # hvd: the others wait until rank 0 has reported


if __name__ == "__main__":
    main()
