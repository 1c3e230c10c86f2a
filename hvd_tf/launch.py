# SPDX-License-Identifier: Apache-2.0
"""hvdrun: starts a program as several ranks with mpirun, and cleans up behind them.

    hvdrun -np 2 python train.py

The same as `python -m hvd_tf.launch`. Imports no TensorFlow.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn, Optional

from hvd_tf import failure_report
from hvd_tf.launcher import mpirun, process
from hvd_tf.launcher.directories import Directories, private_directories
from hvd_tf.launcher.mpirun import LaunchError
from hvd_tf.launcher.output import Output, headed, retagged

_EXAMPLE = "hvdrun -np 2 python train.py"
_USAGE_ERROR = 2
# A rank's status after an uncaught exception.
_EXCEPTION = 1
# How long a stopped job's last output waits for a reader: a full pipe may have none.
_UNREAD_OUTPUT_S = 1.0


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the launcher.

    Args:
      arguments: the command line after the program's name; sys.argv's by default.

    Returns:
      The job's exit code: that of the rank that failed first, 128 + n where signal n ended it,
      2 for an error of the user's in the command line.
    """
    try:
        return _launch(_parse(sys.argv[1:] if arguments is None else arguments))
    except LaunchError as error:
        _say(str(error))
        return _USAGE_ERROR


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message}; {_EXAMPLE!r} is an example, and --help shows all options")


class _Version(argparse.Action):
    def __call__(self, *_: object) -> NoReturn:
        # Imported here, for it takes longer than all the rest.
        from importlib import metadata

        try:
            number = metadata.version("hvd_tf")
        except metadata.PackageNotFoundError:
            number = "(not installed)"
        print(f"hvdrun {number}")
        raise SystemExit(0)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="hvdrun",
        usage="hvdrun -np N [option ...] command [argument ...]",
        description="Runs a command as N ranks on this machine.",
        epilog=f"Example: {_EXAMPLE}",
        allow_abbrev=False,
    )
    parser.add_argument(
        "-np", "--num-proc", type=_rank_count, metavar="N", help="the number of ranks"
    )
    parser.add_argument("--verbose", action="store_true", help="show what is run, and where")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    # Everything behind the first word that is no option; its own dashes are not ours.
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what every rank runs")
    parsed = parser.parse_args(arguments)
    if parsed.command[:1] == ["--"]:
        del parsed.command[0]
    if parsed.num_proc is None:
        parser.error("-np is missing, the number of ranks")
    if not parsed.command:
        parser.error("there is no command for the ranks to run")
    return parsed


def _rank_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks from 1 upwards")
    return int(text)


def _launch(options: argparse.Namespace) -> int:
    environ = dict(os.environ)
    _check_command(options.command[0])
    launcher = mpirun.find(environ)
    with process.Signals() as signals, ExitStack() as stack:
        try:
            directories = stack.enter_context(private_directories(options.num_proc))
            arguments = mpirun.arguments(launcher, options.num_proc, directories, options.command)
        except OSError as error:
            raise LaunchError(
                f"cannot write temporary files ({error.strerror}): set TMPDIR to a directory that "
                "can be written and has room"
            ) from None
        env = mpirun.environment(launcher, options.num_proc, directories, environ)
        if options.verbose:
            _say(f"running {shlex.join(options.command)} by {shlex.join(arguments)}")
            _say(f"temporary files in {directories.job}, shared memory in {directories.segments}")
        return _run(launcher, arguments, env, signals, options.num_proc, directories)


def _check_command(program: str) -> None:
    if shutil.which(program):
        return
    path = Path(program)
    if path.is_dir():
        remedy = "it is a directory: give the program that every rank is to run"
    elif path.suffix == ".py" and path.is_file():
        remedy = f"it is not an executable file: put 'python' before it, as in {_EXAMPLE!r}"
    elif path.is_file():
        remedy = f"it is not an executable file on PATH: 'chmod +x' it and write {str(path)!r} "
        remedy += "with its directory, such as ./ before it"
    else:
        remedy = "there is no such program: check its spelling, or give its full path"
    raise LaunchError(f"cannot run {program!r}: {remedy}")


def _run(
    launcher: mpirun.Mpirun,
    arguments: Sequence[str],
    env: dict[str, str],
    signals: process.Signals,
    ranks: int,
    directories: Directories,
) -> int:
    """Runs mpirun to its end and returns the job's exit code."""
    output = Output()
    tagged = launcher.family == mpirun.OPEN_MPI
    if not tagged:
        _add_pipes(output, ranks, directories)
    try:
        job = process.Job(arguments, env, signals, capture=tagged)
    except OSError as error:
        raise LaunchError(f"cannot run {launcher.path}: {error.strerror}") from None
    if tagged:
        for pipe, sink in ((job.stdout, 1), (job.stderr, 2)):
            output.add(pipe.fileno(), sink, retagged(launcher.major))
    output.start()
    status, stopped_by = job.wait()
    failed = None if stopped_by or not status else failure_report.read_first(directories.job)
    words = b""
    if stopped_by:
        words = _line(f"stopped by {process.name_of(stopped_by)}")
    elif failed:
        words = _line(f"{failed.heading} failed first:\n{failed.traceback.rstrip()}")
    _finish(output, words, signals, patience_s=_UNREAD_OUTPUT_S if stopped_by else math.inf)
    # Open MPI's mpirun sometimes crashes where several ranks abort: then that is not the reason.
    return _EXCEPTION if failed and status < 0 else process.exit_code(status, stopped_by)


def _add_pipes(output: Output, ranks: int, directories: Directories) -> None:
    for stream, sink in (("stdout", 1), ("stderr", 2)):
        for rank in range(ranks):
            pipe = mpirun.stream_path(directories, stream, rank)
            os.mkfifo(pipe, 0o600)
            # For writing too, so that it neither waits for mpirun nor ends before it.
            output.add(os.open(pipe, os.O_RDWR | os.O_CLOEXEC), sink, headed(rank))


def _finish(output: Output, words: bytes, signals: process.Signals, patience_s: float) -> None:
    """Lets the output be read to its end, unless that takes too long or a signal comes."""
    output.finish(words)
    deadline_s = time.monotonic() + patience_s
    while not output.finished(timeout_s=0.05) and time.monotonic() < deadline_s:
        if signals.is_stopping(signals.wait(0)):
            return


def _say(text: str) -> None:
    try:
        os.write(2, _line(text))
    except OSError:
        pass  # nobody reads it


def _line(text: str) -> bytes:
    # Not by sys.stderr: its encoding need not know what a command line may hold.
    return f"hvdrun: {text}\n".encode(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
