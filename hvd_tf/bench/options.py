# SPDX-License-Identifier: Apache-2.0
"""The command line of hvd-bench."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Optional

from hvd_tf._internal.launcher import argument_types
from hvd_tf.bench.cases import ITEM_BYTES, KINDS
from hvd_tf.bench.errors import BenchError
from hvd_tf.bench.units import parse_bytes

_EXAMPLE = "hvd-bench -np 2 --only allreduce --max-bytes 1M"
_ROUNDS_AGAINST = 3


@dataclass(frozen=True)
class Options:
    """The options, checked."""

    ranks: int
    kinds: tuple[str, ...]
    min_bytes: int
    max_bytes: int
    factor: int
    seconds: float
    """The time for the timed calls of a case in one round."""
    threads: int
    """The number of TensorFlow's threads in each rank."""
    rounds: int
    """How often each case is measured. The libraries take turns."""
    limit_s: float
    """The limit for a job's start, and for each of its turns."""
    against: Optional[str]
    """The other library's module."""
    python: str
    """The interpreter that has it."""
    mpirun: Optional[str]
    """The launcher that starts it."""
    json: Optional[Path]
    plot: Optional[Path]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BenchError(f"{message}; {_EXAMPLE!r} is an example, and --help shows all options")


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line, without the program's name.

    Raises:
      BenchError: one sentence with the argument, its value and the remedy.
    """
    given = _parser().parse_args(arguments)
    if given.min_bytes > given.max_bytes:
        raise BenchError(
            f"--min-bytes {given.min_bytes} is more than --max-bytes {given.max_bytes}: "
            "exchange them"
        )
    for option in ("python", "mpirun"):
        if getattr(given, option) and not given.against:
            raise BenchError(
                f"--{option} {getattr(given, option)} is for another library: name its module "
                "too, as in --against horovod.tensorflow"
            )
    _check_files(given)
    python = _program("--python", given.python) if given.python else sys.executable
    return Options(
        ranks=given.num_proc,
        kinds=given.only,
        min_bytes=given.min_bytes,
        max_bytes=given.max_bytes,
        factor=given.factor,
        seconds=given.seconds,
        threads=given.threads,
        rounds=given.rounds or (_ROUNDS_AGAINST if given.against else 1),
        limit_s=given.limit,
        against=given.against,
        python=python,
        mpirun=_mpirun(given, python),
        json=given.json,
        plot=given.plot,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hvd-bench",
        usage="hvd-bench [option ...]",
        description="Times hvd_tf's verbs among ranks on this machine, beside plain copies, "
        "MPI_Allreduce (where mpi4py is installed) and, if asked, another library.",
        epilog=f"Example: {_EXAMPLE}",
        allow_abbrev=False,
    )
    add = parser.add_argument
    count: dict[str, Any] = {"type": argument_types.whole(least=1), "metavar": "N"}
    size: dict[str, Any] = {"type": _bytes, "metavar": "SIZE"}
    add("-np", "--num-proc", default=2, help="the number of ranks (2)", **count)
    add("--only", type=_kinds, default=KINDS, metavar="KIND,...", help=f"of {', '.join(KINDS)}")
    add("--min-bytes", default=4, help="the smallest tensor of a sweep (4)", **size)
    add("--max-bytes", default=256 << 20, help="the largest, such as 64K (256M)", **size)
    add(
        "--factor",
        default=4,
        help="from one size to the next (4)",
        type=argument_types.whole(least=2),
        metavar="N",
    )
    seconds: dict[str, Any] = {"type": argument_types.seconds, "metavar": "S"}
    add("--seconds", default=1.0, help="of timed calls for a case, in each round (1)", **seconds)
    add("--limit", default=300.0, help="for one round of a case, before giving up (300)", **seconds)
    add("--threads", default=1, help="of TensorFlow in each rank (1)", **count)
    add("--against", metavar="MODULE", help="a library to compare with: horovod.tensorflow")
    add("--python", metavar="INTERPRETER", help="the Python that has it (this one)")
    add("--mpirun", metavar="PROGRAM", help="that starts it (the one beside its Python)")
    add(
        "--rounds",
        help=f"of each case, the libraries in turn (1; {_ROUNDS_AGAINST} with --against)",
        **count,
    )
    add("--json", type=Path, metavar="FILE", help="where all numbers are written")
    add("--plot", type=Path, metavar="FILE.png", help="bandwidth over size; needs matplotlib")
    return parser


def _bytes(text: str) -> int:
    try:
        size_bytes = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size_bytes < ITEM_BYTES or size_bytes % ITEM_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a multiple of {ITEM_BYTES} bytes, the size of a float32"
        )
    return size_bytes


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is not measured: choose of {_listed()}")
    return kinds


def _listed() -> str:
    return ", ".join(KINDS)


def _check_files(given: argparse.Namespace) -> None:
    """Checks before the measurement, which takes minutes, that files can be written."""
    for option, path in (("--json", given.json), ("--plot", given.plot)):
        if path and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise BenchError(
                f"{option} {path} cannot be written: name a file in a directory that you can "
                "write to"
            )
    if given.plot and importlib.util.find_spec("matplotlib") is None:
        raise BenchError(
            f"--plot {given.plot} needs matplotlib, which is not installed: run "
            f"'{sys.executable} -m pip install matplotlib', or use --json and plot elsewhere"
        )


def _program(option: str, name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise BenchError(f"{option} {name} is not an executable file: check the path")
    # Links are not resolved, because the python of a virtual environment is one.
    return os.path.abspath(found)


def _mpirun(given: argparse.Namespace, python: str) -> Optional[str]:
    if not given.against:
        return None
    if given.mpirun:
        return _program("--mpirun", given.mpirun)
    beside = Path(python).with_name("mpirun")
    if not os.access(beside, os.X_OK):
        raise BenchError(
            f"--python {python} has no mpirun beside it: name the one of the MPI that "
            f"{given.against} was built with by --mpirun"
        )
    return str(beside)
