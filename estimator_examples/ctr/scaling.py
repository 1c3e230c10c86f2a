# SPDX-License-Identifier: Apache-2.0
"""Weak scaling: how much slower a step is where ranks share their gradients.

    python estimator_examples/ctr/scaling.py
    python estimator_examples/ctr/scaling.py --ids 5000000 --batch 4096
    python estimator_examples/ctr/scaling.py --against horovod.tensorflow --python VENV/bin/python

The ways are

    alone        one process without a library
    independent  as many such processes as there are ranks, at the same time, sharing nothing
    hvd_tf       as many ranks, each with its own batch
    another      the same with another library, in another Python

They take turns, round after round, each in processes of its own. A way's figure is the median of
its rounds. Efficiency is the time of a step alone against the time of a step on many ranks. What
independent processes take longer than one is the machine's part. The rest is exposed communication:
the time of a step with the wrapper less that without it, on as many processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.append(str(Path(__file__).parents[1] / "flights"))

import alone
import canned
import rows
from children import run_together
from models import LOGITS
from scaling_picture import draw
from scaling_report import PER_STEP, Run, label, reported, text
from starting import positive

HERE = Path(__file__).parent
LIMIT_S = 600  # of one run
SETTINGS = (
    *("ranks", "model", "activation", "ids", "dimension", "batch", "zipf", "steps"),
    *("warm_up", "free"),
)


def arguments(line: Optional[list[str]] = None) -> argparse.Namespace:
    """The command line."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_tf_ctr"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=positive, default=2, help="(%(default)s)")
    add("--model", choices=[*LOGITS, canned.NAME], default="deep", help="(%(default)s)")
    add("--activation", default="relu", help="of the dense layers (%(default)s)")
    add("--ids", type=positive, default=1_000_000, help="rows of the table (%(default)s)")
    add("--dimension", type=positive, default=16, help="of a row (%(default)s)")
    add("--batch", type=positive, default=2048, help="clicks per rank and step (%(default)s)")
    add("--zipf", type=float, default=1.05, help="exponent of the ids' frequencies (%(default)s)")
    add("--rounds", type=positive, default=5, help="of turns (%(default)s)")
    add("--steps", type=positive, default=100, help="of a run, that are timed (%(default)s)")
    add("--warm-up", type=positive, default=40, help="steps before, and different batches "
        "(%(default)s)")  # fmt: skip
    add("--free", action="store_true", help="processes may use any core, not one each")
    add("--against", metavar="MODULE", help="another library, such as horovod.tensorflow")
    add("--python", type=Path, help="the Python of that library, beside Open MPI's mpirun")
    add("--data-dir", type=Path, default=cache, help="where the clicks are kept (%(default)s)")
    add("--out", type=Path, default=Path(), help="for scaling.json and scaling.png (%(default)s)")
    args = parser.parse_args(line)
    if bool(args.against) != bool(args.python):
        parser.error("--against and --python go together")
    if args.against in ("hvd_tf", "alone", "independent"):
        parser.error(f"--against {args.against}: name another library")
    return args


def commands(args: argparse.Namespace, way: str, data: Path, out: Path) -> list[list[str]]:
    """What starts the processes of a way."""
    names = ("batch", "ids", "dimension", "steps", "warm_up", "model", "activation")
    words = [str(HERE / "scaling_rank.py"), f"--data={data}", f"--out={out}"]
    words += [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in names]
    words += [] if args.free else ["--pinned"]
    if way in ("alone", "independent"):
        count = 1 if way == "alone" else args.ranks
        return [
            [sys.executable, *words, f"--process={number}", f"--processes={count}"]
            for number in range(count)
        ]
    words.append(f"--library={way}")
    if way == "hvd_tf":
        launcher = [sys.executable, "-m", "hvd_tf.launch", "-np", str(args.ranks)]
        return [[*launcher, sys.executable, *words]]
    mpirun = [str(args.python.parent / "mpirun"), "--allow-run-as-root", "--oversubscribe"]
    return [[*mpirun, "--bind-to", "none", "-np", str(args.ranks), str(args.python), *words]]


def run(args: argparse.Namespace, way: str, data: Path) -> Run:
    """A run of this way: the means over its processes."""
    with tempfile.TemporaryDirectory() as folder:
        run_together(commands(args, way, data, Path(folder)), LIMIT_S)
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    count = 1 if way == "alone" else args.ranks
    if len(found) != count:
        raise RuntimeError(f"{way}: {len(found)} of {count} processes have reported")
    together = {key: statistics.mean(one[key] for one in found) for key in ("step_ms", "input_ms")}
    if all(one["sent"] for one in found):
        together["sent"] = {
            key: statistics.mean(one["sent"][key] for one in found) for key in PER_STEP
        }
    return together


def main() -> None:
    """Measure round after round, and report."""
    args = arguments()
    needed = {"train": (args.warm_up + 1) * args.batch * args.ranks}
    data = rows.prepare_on_all(alone, args.data_dir, args.zipf, 11, needed)
    ways = ["alone", "independent", "hvd_tf", *([args.against] if args.against else [])]
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for number in range(args.rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            runs[way].append(run(args, way, data))
            took = runs[way][-1]["step_ms"]
            print(f"round {number + 1}, {way}: {took:.1f} ms", file=sys.stderr, flush=True)
    report = reported({name: getattr(args, name) for name in SETTINGS}, runs)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        labels = {way: label(report, way) for way in ways}
        report["pictures"] = [draw(report, labels, args.out)]
    except ImportError as error:
        report["pictures"] = []
        print(f"no picture: {error}; python -m pip install --no-deps -r requirements.txt")
    (args.out / "scaling.json").write_text(json.dumps(report, indent=2) + "\n")
    print(text(report))


if __name__ == "__main__":
    main()
