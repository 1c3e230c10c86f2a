# SPDX-License-Identifier: Apache-2.0
"""Train DeepFM or wide-and-deep on made-up clicks: on one rank, or on many under hvdrun.

    hvdrun -np 2 python estimator_examples/ctr/train.py
    hvdrun -np 4 python estimator_examples/ctr/train.py --stream --batches 100,120,90,0

With --stream each rank reads a log of its own, and the logs end when they end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).parents[1] / "flights"))

import rows
import tensorflow as tf
import uneven
from generator import CARDINALITIES, Generator
from hooks import Progress, Speed
from layers import Sizes
from models import LOGITS
from report import write
from starting import library, limit_threads, not_negative, positive, step_of
from training import Settings, train

v1 = tf.compat.v1
WARM_UP = 20  # steps that are not timed


def arguments(line: Optional[list[str]] = None) -> argparse.Namespace:
    """The command line, or what it would be for these words."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_ctr"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", choices=list(LOGITS), default="deepfm", help="(%(default)s)")
    add("--data-dir", type=Path, default=cache, help="where the clicks are kept (%(default)s)")
    add("--model-dir", type=Path, help="the checkpoint and the report (a new folder in data-dir)")
    add("--clicks", type=positive, default=1 << 20, help="to train on, made once (%(default)s)")
    add("--held-out", type=positive, default=1 << 17, help="to evaluate on (%(default)s)")
    add("--steps", type=positive, help="global steps (one pass over the clicks)")
    add("--batch", type=batch_size, default=1024, help="clicks per rank and step (%(default)s)")
    add("--ids", type=table_rows, default=1_000_000, help="rows of the table (%(default)s)")
    add("--zipf", type=float, default=1.05, help="exponent of the ids' frequencies (%(default)s)")
    add("--lr", type=float, default=Settings.lr, help="of Adagrad, for one rank (%(default)s)")
    add("--seed", type=int, default=11, help="of the clicks and the weights (%(default)s)")
    add(
        "--threads",
        type=not_negative,
        default=1,
        help="per rank, 0: as many as cores (%(default)s)",
    )
    add("--stream", action="store_true", help="each rank has a log of its own, of any length")
    add("--batches", type=counts, help="of each rank's log, such as 100,120,90,0 (by chance)")
    add("--per-hour", type=positive, default=20, help="batches of a log's hour (%(default)s)")
    add("--drift", type=float, default=0.005, help="part of the ids that an hour replaces, in a "
        "stream (%(default)s)")  # fmt: skip
    add("--plain", action="store_true", help="one process without hvd_tf")
    args = parser.parse_args(line)
    if args.stream and (args.plain or args.steps):
        parser.error("--stream goes with neither --plain nor --steps")
    if args.batches and not args.stream:
        parser.error("--batches is for --stream")
    return args


def batch_size(text: str) -> int:
    """An argument that is a number of whole records."""
    rows.blocks_of(positive(text))
    return int(text)


def table_rows(text: str) -> int:
    """An argument that is a number of rows, one for each feature at least."""
    if positive(text) < len(CARDINALITIES):
        raise argparse.ArgumentTypeError(
            f"{text} is less than {len(CARDINALITIES)}, a row for each feature"
        )
    return int(text)


def counts(text: str) -> list[int]:
    """An argument such as 100,120,90,0."""
    found = [int(one) for one in text.split(",")]
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text}: no log has less than 0 batches")
    return found


def log_length(args: argparse.Namespace, hvd: ModuleType) -> int:
    """The batches of this rank's log."""
    if args.batches is None:
        return uneven.length(args.seed, hvd.rank())
    if len(args.batches) != hvd.size():
        sys.exit(f"--batches has {len(args.batches)} numbers: give one for each of {hvd.size()}")
    return args.batches[hvd.rank()]


def prepared(args: argparse.Namespace, hvd: ModuleType) -> Path:
    """The folder of the clicks, after every rank has called this."""
    clicks = {"held_out": args.held_out}
    if not args.stream:
        clicks["train"] = args.clicks
    return rows.prepare_on_all(hvd, args.data_dir, args.zipf, args.seed, clicks)


def settings(args: argparse.Namespace) -> Settings:
    """The training's settings, as the command line has them."""
    return Settings(args.model, Sizes(ids=args.ids), args.lr, args.seed, args.threads)


def main() -> None:
    """Train on all ranks, evaluate on all ranks, and let rank 0 report."""
    args = arguments()
    v1.logging.set_verbosity(v1.logging.ERROR)
    hvd = library(args.plain)
    hvd.init()  # hvd: before anything else of the library
    limit_threads(args.threads)
    first, size = hvd.rank() == 0, hvd.size()  # hvd: progress and report on one rank only
    data = prepared(args, hvd)
    speed = Speed(WARM_UP)
    watch = [speed]
    if args.stream:
        source, length = Generator(args.zipf, args.seed, args.drift), log_length(args, hvd)
        share = uneven.training(source, hvd.rank(), length, args.batch, args.per_hour)
        steps = None
    else:
        share = rows.training(hvd, data, args.batch)
        steps = args.steps or max(1, args.clicks // (args.batch * size))
        watch += [Progress(steps)] if first else []
    folder = args.model_dir or Path("model")  # hvd: rank 0's alone is used
    if first and args.model_dir is None:
        folder = Path(tempfile.mkdtemp(dir=args.data_dir, prefix="model-"))
    # hvd: only rank 0 has checkpoints
    begun = hvd.broadcast_object(step_of(folder) if first else 0, 0)
    if begun and args.stream:
        sys.exit(f"--model-dir {folder} holds a checkpoint: --stream needs a new folder")
    if steps is not None:
        speed.skip = min(WARM_UP, max(0, steps - begun) // 2)
    estimator = train(hvd, settings(args), share, folder, steps, watch, begun)
    found = hvd.estimator.evaluate(estimator, rows.evaluation(data))  # hvd: was estimator.evaluate
    consumed = hvd.allgather_object(speed.done)  # hvd: of all ranks
    if first:
        finish(args, size, folder, speed, consumed, found)
    hvd.broadcast_object(None, 0)  # hvd: the others wait until rank 0 has reported


def finish(
    args: argparse.Namespace,
    size: int,
    folder: Path,
    speed: Speed,
    consumed: list[int],
    found: dict[str, float],
) -> None:
    """On rank 0, while the others wait: keep and print the report."""
    report = {
        "model": args.model,
        "workers": size,
        **{name: getattr(args, name) for name in ("batch", "ids", "zipf", "lr", "seed", "stream")},
        "steps": int(found["global_step"]),
        "batches": consumed,
        "steps_per_s": speed.steps_per_s,
        **{name: float(found[name]) for name in ("auc", "ceiling", "log_loss")},
    }
    write(folder, report)
    print(
        f"{'AUC':<10}{report['auc']:.4f} of at most {report['ceiling']:.4f}, that of the logits "
        f"from which the clicks were drawn; log loss {report['log_loss']:.4f}"
    )
    if report["steps_per_s"] > 0:
        print(f"{'speed':<10}{report['steps_per_s']:.1f} steps/s of {size} x {args.batch} clicks")
    else:
        print(f"{'speed':<10}of too few steps to tell")
    shares = " + ".join(map(str, consumed))
    print(f"{'batches':<10}{shares} = {sum(consumed)} in {report['steps']} steps")
    print(f"{args.model} on {size} worker(s); checkpoint and report.json: {folder}")


if __name__ == "__main__":
    main()
