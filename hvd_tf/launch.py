# SPDX-License-Identifier: Apache-2.0
"""hvdrun: starts a program as several ranks with mpirun, and cleans up behind them.

    hvdrun -np 2 python train.py

The same as `python -m hvd_tf.launch`. Imports no TensorFlow. docs/launching.md has the options.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Optional

from hvd_tf._internal.caller import Caller
from hvd_tf._internal.launcher import build_check, mpirun, process, process_limit, variables
from hvd_tf._internal.launcher.attempt import Attempt, command_line, has_pipes, remote_of
from hvd_tf._internal.launcher.directories import kept_directory
from hvd_tf._internal.launcher.errors import LaunchError, no_temporary_files
from hvd_tf._internal.launcher.file_limit import FileLimit
from hvd_tf._internal.launcher.options import EXAMPLE, Options, parse
from hvd_tf._internal.launcher.output import RankFiles
from hvd_tf._internal.launcher.saying import say

_USAGE_ERROR = 2
_STDERR = 2
_GONE = (
    "the directory in which hvdrun was started has been removed, and no rank can start in it: go "
    "to one that is there (cd), even if there is a new one of that name"
)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the launcher.

    Args:
      arguments: the command line after the program's name; sys.argv's by default.

    Returns:
      The job's exit code: that of the rank that failed first, 128 + n where signal n ended it,
      124 where a rank had not started in time, 2 for an error of the user's in the command line.
    """
    _open_missing_streams()
    with Caller(os.environ) as caller:
        return _main(sys.argv[1:] if arguments is None else arguments, caller)


def _main(arguments: Sequence[str], caller: Caller) -> int:
    try:
        options = parse(arguments)
        if options.check_build:
            return _show_build(options)
        return _launch(options, caller)
    except LaunchError as error:
        say(str(error))
        return _USAGE_ERROR
    except KeyboardInterrupt:  # before the job, which has handlers of its own
        return 128 + signal.SIGINT
    except BrokenPipeError:  # whoever reads what this launcher prints has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _open_missing_streams() -> None:
    """Files get the lowest descriptors that are free. None may get a standard stream's."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass  # a daemon may have closed it
    os.close(descriptor)


def _show_build(options: Options) -> int:
    """Prints it; 1 where hvd_tf does not work here."""
    facts = build_check.facts(os.environ)
    text = json.dumps(facts, indent=2) if options.as_json else build_check.report(facts).rstrip()
    print(text, flush=True)
    return int(facts["problem"] is not None)


def _launch(options: Options, caller: Caller) -> int:
    if problem := build_check.problem():
        raise LaunchError(problem)
    for notice in options.notices:
        say(notice)
    environ = variables.merged(os.environ, options.variables)
    here = not options.hosts or any(host.is_local for host in options.hosts)
    if here and not mpirun.looks_elsewhere(options.mpi_arguments):
        _check_command(options.command[0], environ)
    launcher = mpirun.find(environ)
    if options.dry_run:
        line = command_line(options, launcher, None, remote_of(options, environ), environ)
        print(shlex.join(line))
        return 0
    if not _is_somewhere():
        raise LaunchError(_GONE)
    with process.Signals() as signals, FileLimit() as file_limit, ExitStack() as stack:
        caller.follow()  # its end is a signal that is waited for from here on
        if caller.has_gone():
            return 128 + signal.SIGTERM
        process_limit.check(options.ranks, options.hosts)
        file_limit.check(options.ranks, options.output is not None, has_pipes(launcher))
        files = None
        if options.output is not None:
            files = RankFiles(options.output, options.ranks)
            stack.callback(files.close)
        shared = (caller.directory, _choose_commits(options, environ, stack))
        kept = [directory for directory in shared if directory]
        return _run(options, launcher, environ, signals, file_limit, files, kept)


def _choose_commits(options: Options, environ: dict[str, str], stack: ExitStack) -> Optional[Path]:
    """Makes a directory for the commits of a job that is started again, unless the user has."""
    if not options.restarts or environ.get(variables.COMMITS_VARIABLE):
        return None
    if options.hosts and not options.hosts[0].is_this_machine():
        say(
            f"rank 0 is on {options.hosts[0].name}, so hvd.elastic keeps no commits for a restart "
            f"and begins anew: set {variables.COMMITS_VARIABLE} to a directory that all hosts share"
        )
        return None
    try:
        chosen = stack.enter_context(kept_directory())
    except OSError as error:
        raise no_temporary_files(error) from None
    environ[variables.COMMITS_VARIABLE] = environ[variables.CHOSEN_VARIABLE] = str(chosen)
    return chosen


def _run(
    options: Options,
    launcher: mpirun.Mpirun,
    environ: dict[str, str],
    signals: process.Signals,
    file_limit: FileLimit,
    files: Optional[RankFiles],
    kept: Sequence[Path],
) -> int:
    """Starts the job, and again after a failure where that was asked for."""
    environ.setdefault(variables.JOB_VARIABLE, secrets.token_hex(8))
    for restart in range(options.restarts + 1):
        env = {**environ, variables.RESTART_VARIABLE: str(restart)}
        outcome = Attempt(options, launcher, env, signals, file_limit, files, kept).run()
        if outcome.code == 0 or outcome.stopped or restart == options.restarts:
            break
        if not _is_somewhere():
            say(f"the job ended with status {outcome.code}, and is not started again: {_GONE}")
            break
        say(
            f"the job ended with status {outcome.code}; starting it again "
            f"(restart {restart + 1} of {options.restarts})"
        )
    return outcome.code


def _is_somewhere() -> bool:
    """Whether the current directory is there, which mpirun needs."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    except OSError:  # not to be read, which mpirun will judge
        pass
    return True


def _check_command(program: str, environ: Mapping[str, str]) -> None:
    if shutil.which(program, path=environ.get("PATH")):
        return
    path = Path(program)
    if path.is_dir():
        remedy = "it is a directory: give the program that every rank is to run"
    elif path.suffix == ".py" and path.is_file():
        remedy = f"it is not an executable file: put 'python' before it, as in {EXAMPLE!r}"
    elif path.is_file():
        remedy = f"it is not an executable file on PATH: 'chmod +x' it and write {str(path)!r} "
        remedy += "with its directory, such as ./ before it"
    else:
        remedy = "there is no such program: check its spelling, or give its full path"
    raise LaunchError(f"cannot run {program!r}: {remedy}")


if __name__ == "__main__":
    sys.exit(main())
