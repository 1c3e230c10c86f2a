# SPDX-License-Identifier: Apache-2.0
"""`python -m hvd_tf.timeline report FILE`: what a timeline says, as text and as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from hvd_tf.timeline import picture
from hvd_tf.timeline.errors import TimelineError
from hvd_tf.timeline.report import report
from hvd_tf.timeline.split import steps_of
from hvd_tf.timeline.trace_file import read

_USAGE_ERROR = 2


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the program.

    Args:
      arguments: the command line after the program's name; sys.argv's by default.

    Returns:
      0, or 2 after an error. The last line of stderr has the error.
    """
    found = _parser().parse_args(arguments)
    try:
        _report(found)
    except (TimelineError, OSError) as error:
        print(f"hvd_tf.timeline: {error}", file=sys.stderr)
        return _USAGE_ERROR
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m hvd_tf.timeline")
    commands = parser.add_subparsers(required=True, metavar="report")
    command = commands.add_parser("report", help="where the time goes, and the slowest rank")
    add = command.add_argument
    add("file", type=Path, metavar="FILE", help="what HVD_TIMELINE or start_timeline has written")
    add("--steps", action="store_true", help="a line for every step, not just the 20 longest")
    add(
        "--picture",
        type=Path,
        metavar="FILE.png",
        help="where the picture goes; FILE with .png behind it by default; needs matplotlib",
    )
    add("--no-picture", action="store_true", help="the text alone")
    return parser


def _report(found: argparse.Namespace) -> None:
    missing = picture.missing()
    if found.picture and missing:
        raise TimelineError(f"--picture {found.picture} cannot be drawn: {missing}")
    trace = read(found.file)
    steps = steps_of(trace)
    print(report(str(found.file), trace, steps, found.steps), end="", flush=True)
    if found.no_picture or not steps:
        return
    if missing:
        print(f"hvd_tf.timeline: no picture: {missing}", file=sys.stderr)
        return
    path = found.picture or Path(f"{found.file}.png")
    picture.draw(steps, path)
    print(f"\npicture: {path}")


if __name__ == "__main__":
    sys.exit(main())
