# SPDX-License-Identifier: Apache-2.0
"""One start of the job: directories, environment and arguments for it, and then its course."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hvd_tf._internal import notices
from hvd_tf._internal.launcher import (
    hydra_options,
    local_bridges,
    mpich_segments,
    mpirun,
    process,
    variables,
)
from hvd_tf._internal.launcher.course import Course, Outcome
from hvd_tf._internal.launcher.directories import Directories, private_directories
from hvd_tf._internal.launcher.errors import LaunchError, no_temporary_files
from hvd_tf._internal.launcher.file_limit import FileLimit
from hvd_tf._internal.launcher.mpi_words import MpiWords
from hvd_tf._internal.launcher.mpirun import Mpirun
from hvd_tf._internal.launcher.options import Options
from hvd_tf._internal.launcher.output import Output, RankFiles, of_rank
from hvd_tf._internal.launcher.rank_main import STDIN
from hvd_tf._internal.launcher.rank_notices import RankNotices
from hvd_tf._internal.launcher.remote import Remote
from hvd_tf._internal.launcher.saying import say
from hvd_tf._internal.launcher.watcher import Watcher


@dataclass(frozen=True)
class Attempt:
    """One start of a job. Owner: the launcher's main thread."""

    options: Options
    launcher: Mpirun
    environ: Mapping[str, str]
    signals: process.Signals
    file_limit: FileLimit
    files: RankFiles | None
    kept: Sequence[Path] = ()
    """Directories that all starts of the job share."""

    def run(self) -> Outcome:
        """Runs the job to its end.

        Raises:
          LaunchError: it could not be started.
        """
        with ExitStack() as stack:
            watcher = Watcher()
            stack.callback(watcher.close)
            try:
                directories = stack.enter_context(private_directories(self.options.ranks))
                watcher.watch(directories, self.kept)
                if sys.stdin is not None:  # it is where the launcher was started without
                    (directories.job / STDIN).symlink_to(f"/proc/{os.getpid()}/fd/0")
                told = RankNotices(directories.job)
                env = {**self.environ, notices.VARIABLE: told.word}
                remote = remote_of(self.options, env)
                env = mpirun.environment(
                    self.launcher, self.options.ranks, directories, env, remote
                )
                fold = None if self.options.verbose else MpiWords()
                output = Output(self.options.timestamp, self.files, told.see, fold)
                stack.callback(output.close)
                if has_pipes(self.launcher):
                    _add_pipes(output, self.options.ranks, directories)
            except OSError as error:
                raise no_temporary_files(error) from None
            arguments = command_line(self.options, self.launcher, directories, remote, env)
            if self.options.verbose:
                command = shlex.join(self.options.command)
                say(f"running {command} by {shlex.join(arguments)}")
                say(
                    f"temporary files in {directories.job}, shared memory in {directories.segments}"
                )
            began_s = time.time()
            try:
                course = Course(self.options, self.launcher, directories, told, remote)
                return course.run(self._start(arguments, env), output, env, self.signals)
            finally:
                if self.launcher.is_hydra:
                    mpich_segments.remove_left(began_s)

    def _start(self, arguments: Sequence[str], env: Mapping[str, str]) -> process.Job:
        try:
            return process.Job(arguments, env, self.signals, self.file_limit)
        except OSError as error:
            raise LaunchError(f"cannot run {self.launcher.path}: {error.strerror}") from None


def remote_of(options: Options, env: Mapping[str, str]) -> Remote | None:
    """What mpirun needs to know of other hosts. None: there are none."""
    if not options.hosts:
        return None
    names = variables.forwarded(env, options.variables)
    return Remote(options.hosts, names, options.ssh_arguments)


def command_line(
    options: Options,
    launcher: Mpirun,
    directories: Directories | None,
    remote: Remote | None,
    environ: Mapping[str, str],
) -> list[str]:
    """The argument list of mpirun for these options."""
    interfaces = mpirun.interface_arguments(
        launcher, options.network_interfaces
    ) or local_bridges.exclusion(launcher, options.hosts, environ, options.mpi_arguments)
    return mpirun.arguments(
        launcher,
        options.ranks,
        directories,
        options.command,
        remote,
        more=(*interfaces, *options.mpi_arguments),
        shares_cores=options.shares_cores,
    )


def has_pipes(launcher: Mpirun) -> bool:
    """Whether each rank's output comes by pipes of its own."""
    return launcher.is_hydra


def _add_pipes(output: Output, ranks: int, directories: Directories) -> None:
    for stream, sink in (("stdout", 1), ("stderr", 2)):
        for rank in range(ranks):
            pipe = hydra_options.stream_path(directories, stream, rank)
            os.mkfifo(pipe, 0o600)
            # For writing too, so that it neither waits for mpirun nor ends before it.
            output.add(os.open(pipe, os.O_RDWR | os.O_CLOEXEC), sink, of_rank(rank), own=True)
