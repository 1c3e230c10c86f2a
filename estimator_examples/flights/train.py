# SPDX-License-Identifier: Apache-2.0
"""Train wide-and-deep on the flights with tf.estimator: on one rank, or on many under hvdrun.

    hvdrun -np 2 python estimator_examples/flights/train.py
    hvdrun -np 2 python estimator_examples/flights/train.py --stream

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

import tasks
import tensorflow as tf
import turns
from best import Best, best_checkpoint
from curve import Curve, Row
from data import SPLITS
from features import CATEGORICAL
from hooks import Progress, Speed, Turns
from inputs import InputFn
from model import model_fn
from pictures import draw
from report import Report, text, write
from starting import library, limit_threads, not_negative, positive, run_config, step_of
from tasks import Task
from whole import stop_on_failure
from workers import compare

v1 = tf.compat.v1
WARM_UP = 50  # steps that are not timed
METRICS = ("auc", "log_loss", "accuracy")


def arguments(line: Optional[list[str]] = None) -> argparse.Namespace:
    """The command line, or what it would be for these words."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_flights"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data-dir", type=Path, default=cache, help="where the shards are kept (%(default)s)")
    add("--model-dir", type=Path, help="checkpoints and reports (a new folder in data-dir)")
    add("--passes", type=float, default=6.0, help="passes over the flights (%(default)s)")
    add("--steps", type=positive, help="global steps, instead of passes")
    add("--batch", type=positive, default=1024, help="flights per worker and step (%(default)s)")
    add("--lr", type=float, default=0.075, help="of Adagrad, for one worker (%(default)s)")
    add("--seed", type=int, default=1, help="of the weights and the shuffle (%(default)s)")
    add(
        "--threads",
        type=not_negative,
        default=1,
        help="per rank, 0: as many as cores (%(default)s)",
    )
    add("--held-out", choices=SPLITS, default="test", help="see data.py (%(default)s)")
    add("--evaluations", type=positive, default=6, help="during the training (%(default)s)")
    add("--stream", action="store_true", help="the year in time order, evaluated as it goes")
    add("--block", type=positive, default=30_000, help="flights between evaluations (%(default)s)")
    add("--one-in", type=positive, default=1, help="use one flight in so many (%(default)s)")
    add("--no-eval", action="store_true", help="only train")
    add("--no-baseline", action="store_true", help="do not measure fewer workers")
    add("--plain", action="store_true", help="one process without hvd_tf")
    add("--turns", type=Path, help="train only when told to by turns.py's pipes in this folder")
    args = parser.parse_args(line)
    if args.stream and (args.plain or args.steps or args.no_eval):
        parser.error("--stream goes with neither --plain nor --steps nor --no-eval")
    return args


def model_folder(args: argparse.Namespace, hvd: ModuleType) -> tuple[Path, int]:
    """Where rank 0 keeps the model, and the step of the checkpoint there, on every rank."""
    folder, step, failure = Path("model"), 0, ""
    try:
        if hvd.rank() == 0:
            args.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = args.model_dir or Path(tempfile.mkdtemp(dir=args.data_dir, prefix="model-"))
            step = step_of(folder)
            if step and args.stream:
                failure = f"--model-dir {folder} holds a checkpoint: --stream needs a new folder"
    except (OSError, tf.errors.OpError) as error:
        failure = str(error)
    stop_on_failure(hvd, failure)
    return folder, hvd.broadcast_object(step, 0)  # hvd: only rank 0 has checkpoints


def train(
    args: argparse.Namespace,
    hvd: ModuleType,
    share: InputFn,
    model_dir: Path,
    watch: Sequence[v1.train.SessionRunHook] = (),
    evaluations: Optional[tuple[int, tf.estimator.EvalSpec]] = None,
    begun: int = 0,
) -> tf.estimator.Estimator:
    """Train on this rank's share of the data until global step args.steps, or until it ends.

    evaluations: every how many steps to evaluate, and what.
    begun: the step of rank 0's checkpoint, where there is one.
    """
    interval, eval_spec = evaluations or (None, None)

    def optimizer() -> v1.train.Optimizer:
        rate = hvd.estimator.scale_learning_rate(args.lr)  # hvd: for size times the batch
        if args.steps:
            step = v1.train.get_global_step()
            rate = v1.train.polynomial_decay(rate, step, args.steps, end_learning_rate=0.0)
        # Its default of 0.1 would all but freeze rows that few flights of a batch look up.
        adagrad = v1.train.AdagradOptimizer(rate, initial_accumulator_value=1e-3)
        return hvd.DistributedOptimizer(adagrad)  # hvd: averages the gradients over the ranks

    estimator = tf.estimator.Estimator(
        model_fn,
        config=run_config(hvd, model_dir, args.threads, args.seed, interval),
        params={"fields": CATEGORICAL, "optimizer": optimizer},
    )
    hooks = [hvd.BroadcastGlobalVariablesHook(0), *watch]  # hvd: all start with rank 0's weights
    if eval_spec is None:
        if begun < args.steps:  # hvd: else rank 0, which has the checkpoint, would train no step
            estimator.train(share, hooks=hooks, max_steps=args.steps)
    else:
        train_spec = tf.estimator.TrainSpec(share, max_steps=args.steps, hooks=hooks)
        hvd.estimator.train_and_evaluate(  # hvd: was tf.estimator.train_and_evaluate
            estimator, train_spec, eval_spec
        )
    return estimator


def test(hvd: ModuleType, estimator: tf.estimator.Estimator, held_out: InputFn) -> dict[str, Row]:
    """What the held-out flights say of the weights that were best on validation, and of the last.

    "best" and "end", each with "step", "auc", "log_loss" and "accuracy".
    """
    tested = {}
    for which, checkpoint in (("best", best_checkpoint(estimator.model_dir)), ("end", None)):
        found = hvd.estimator.evaluate(  # hvd: was estimator.evaluate
            estimator, held_out, checkpoint_path=checkpoint, name=f"test_{which}"
        )
        tested[which] = {"step": int(found["global_step"])}
        tested[which].update({key: float(found[key]) for key in METRICS})
    return tested


def measured(args: argparse.Namespace, size: int, task: Task, speed: Speed, curve: Curve) -> Report:
    """What was trained, how fast, and what the evaluations found."""
    settings = ("threads", "batch", "lr", "seed", "held_out", "stream")
    steps = args.steps or speed.done
    trained_on = steps * args.batch * size
    last = curve.rows[-1] if curve.rows else {}
    return {
        "workers": size,
        **{name: getattr(args, name) for name in settings},
        "steps": steps,
        "passes": trained_on / task.flights if task.flights else 1.0,
        "seconds": speed.seconds,
        "steps_per_s": speed.steps_per_s,
        "examples_per_s": speed.steps_per_s * args.batch * size,
        "evaluated": task.evaluated,
        "tested": task.tested or task.evaluated,
        "curve": curve.rows,
        **{key: last[key] for key in METRICS if last},
    }


def finish(report: Report, folder: Path) -> None:
    """On rank 0, while the others wait: draw, keep and print the report."""
    try:
        report["pictures"] = draw(report, folder)
    except ImportError as error:
        report["pictures"] = []
        print(f"no pictures: {error}; python -m pip install --no-deps -r requirements.txt")
    write(folder, report)
    print(text(report))
    print(f"checkpoints, {', '.join(['report.json', *report['pictures']])}: {folder}")


def main() -> None:
    """Train and evaluate, then let rank 0 report."""
    args = arguments()
    v1.logging.set_verbosity(v1.logging.ERROR)
    hvd = library(args.plain)
    hvd.init()  # hvd: before anything else of the library
    limit_threads(args.threads)
    first, size = hvd.rank() == 0, hvd.size()  # hvd: progress and report on one rank only
    folder, step = model_folder(args, hvd)
    curve, speed = Curve(args.batch * size), Speed(WARM_UP)
    if args.stream:
        task, watch = tasks.time_order(args, hvd, speed, curve), [speed]
        speed.skip = min(WARM_UP, task.interval)
    else:
        task = tasks.passes(args, hvd, step)
        speed.skip = min(WARM_UP, (args.steps - step) // 2)
        watch = [speed, Progress(args.steps - step)] if first else [speed]
    if args.turns and first:
        watch.append(Turns(turns.Turn(args.turns), args.steps // turns.COUNT))
    if first:
        curve.resume(folder, step)
    exporters = [curve, Best(curve)] if task.test else [curve]
    spec = tf.estimator.EvalSpec(task.evaluate, steps=None, exporters=exporters, throttle_secs=0)
    evaluations = None if args.no_eval else (task.interval, spec)
    estimator = train(args, hvd, task.train, folder, watch, evaluations, step)
    report = measured(args, size, task, speed, curve)
    if task.test and evaluations:
        report["test"] = test(hvd, estimator, task.test)
        report.update({key: report["test"]["best"][key] for key in METRICS})
    if size > 1 and speed.steps_per_s > 0 and not (args.no_baseline or args.stream):
        same = ("data_dir", "batch", "lr", "seed", "threads", "held_out", "one_in")
        options = [f"--{k.replace('_', '-')}={getattr(args, k)}" for k in same]
        compare(hvd, report, Path(__file__), options)
    if first:
        finish(report, folder)
    hvd.broadcast_object(None, 0)  # hvd: the others wait until rank 0 has reported


if __name__ == "__main__":
    main()
