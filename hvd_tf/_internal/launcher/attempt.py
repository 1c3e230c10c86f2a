# SPDX-License-Identifier: Apache-2.0
"""One start of the job, from its directories to its exit code."""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hvd_tf._internal import failure_report, notices
from hvd_tf._internal.launcher import (
    ends,
    hydra_options,
    last_words,
    local_bridges,
    mpich_segments,
    mpirun,
    process,
    variables,
)
from hvd_tf._internal.launcher.directories import Directories, private_directories
from hvd_tf._internal.launcher.errors import LaunchError, no_temporary_files
from hvd_tf._internal.launcher.file_limit import FileLimit
from hvd_tf._internal.launcher.hydra import Hydra
from hvd_tf._internal.launcher.killed import Killed
from hvd_tf._internal.launcher.lost_hosts import LostHosts
from hvd_tf._internal.launcher.mpi_words import MpiWords
from hvd_tf._internal.launcher.mpirun import Mpirun
from hvd_tf._internal.launcher.options import Options
from hvd_tf._internal.launcher.output import Output, RankFiles, of_rank, tagged
from hvd_tf._internal.launcher.rank_exceptions import first_exception
from hvd_tf._internal.launcher.rank_main import RANK_VARIABLES, STDIN
from hvd_tf._internal.launcher.rank_notices import RankNotices
from hvd_tf._internal.launcher.remote import Remote, ssh_check
from hvd_tf._internal.launcher.starts import Starts
from hvd_tf._internal.launcher.unended import Unended
from hvd_tf._internal.launcher.watcher import Watcher

# A rank's status after an uncaught exception.
_EXCEPTION = 1
# What `timeout` returns.
_LATE = 124
# How long a stopped job's last output waits for a reader. A full pipe may have none.
_UNREAD_OUTPUT_S = 1.0


@dataclass(frozen=True)
class Outcome:
    """How a start ended."""

    code: int
    """For the launcher to return."""
    stopped: bool
    """Whether a signal to the launcher asked for the end."""


@dataclass(frozen=True)
class Attempt:
    """One start of a job. Owner: the launcher's main thread."""

    options: Options
    launcher: Mpirun
    environ: Mapping[str, str]
    signals: process.Signals
    file_limit: FileLimit
    files: RankFiles | None

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
                watcher.watch(directories)
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
                return self._run(arguments, env, output, told, directories, remote)
            finally:
                if self.launcher.is_hydra:
                    mpich_segments.remove_left(began_s)

    def _has_children(self) -> bool:
        """Whether mpirun has a child as long as there are ranks."""
        # The ssh of Open MPI 4 may end as soon as the daemon on the other host has begun.
        return not self.options.hosts or self.launcher.is_hydra or self.launcher.major >= 5

    def _starts(self, told: RankNotices, directories: Directories) -> Starts | None:
        limit_s = self.options.start_limit_s
        if limit_s is None:
            return None
        return Starts(told, self.options.ranks, limit_s, lambda: self._waits_for(directories))

    def _waits_for(self, directories: Directories) -> str:
        """Why not even this host has a rank: mpirun starts none before it has all hosts."""
        elsewhere = [host.name for host in self.options.hosts if not host.is_local]
        if len(elsewhere) == len(self.options.hosts):
            return ""  # there is none on this host, or it cannot be told
        mark = (failure_report.DIRECTORY_VARIABLE, str(directories.job))
        if not elsewhere or process.has_marked(*mark, RANK_VARIABLES):
            return ""
        check = ssh_check(elsewhere, self.options.ssh_arguments)
        return f"mpirun has started none, as when a host does not answer: {check}"

    def _run(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        output: Output,
        told: RankNotices,
        directories: Directories,
        remote: Remote | None,
    ) -> Outcome:
        hydra = Hydra(told) if self.launcher.is_hydra else None
        try:
            job = process.Job(arguments, env, self.signals, self.file_limit)
        except OSError as error:
            raise LaunchError(f"cannot run {self.launcher.path}: {error.strerror}") from None
        lost = LostHosts(remote, told.heard_of)
        split = lost.splitting(hydra.split if hydra else tagged(self.launcher.major))
        for pipe, sink in ((job.stdout, 1), (job.stderr, 2)):
            # One of its own, to be closed when it has been read to its end.
            output.add(os.dup(pipe.fileno()), sink, split, own=True)
            pipe.close()
        output.start()
        starts = self._starts(told, directories)
        killed = Killed(told)
        unended = Unended(told, self.options.ranks, env, say)

        def failed() -> failure_report.Report | None:
            return first_exception(failure_report.read_all(directories.job), told.states())

        def has_failed() -> bool:
            states = told.states()
            ended = [state.ended for state in states.values() if state.ended]
            missed = any(last_words.never_comes(end, states) for end in ended)
            unseen = hydra and hydra.first_failure()
            return bool(told.mpi_has_aborted or missed or unseen or failed())

        over = ends.Over().check(
            job.pid,
            output.quiet_s,
            end_strays=lambda: _end_strays(job),
            has_failed=has_failed,
            children_matter=self._has_children(),
        )
        ending = job.wait(
            [over, unended.check(), killed.check(), *([starts.check()] if starts else [])]
        )

        def seen() -> tuple[process.Ending, failure_report.Report | None]:
            # Once all that the ranks have written has been read.
            final = hydra.seen(ending) if hydra else ending
            return final, failed() if final.status and not final.stopped_by else None

        def words() -> bytes:
            late = starts.words() if starts and starts.late else unended.words or killed.words
            if late and not ending.stopped_by:
                return line(late)
            full = directories.full() if -ending.status == signal.SIGBUS else ""
            return _last_words(*seen(), told.states(), lost.words, full)

        patience_s = _UNREAD_OUTPUT_S if ending.stopped_by else math.inf
        stopped = _finish(output, words, self.signals, patience_s)
        if lost.words and not ending.stopped_by:
            job.kill()  # mpirun's status may say that all is well
        final, report = seen()
        if ending.stopped_by:
            code = process.exit_code(ending.status, ending.stopped_by)
        elif starts and starts.late:
            code = _LATE
        else:
            of_rank = last_words.of_report(report, told.states()).status if report else 0
            code = of_rank or (hydra.code(final) if hydra else _exit_code(final, report))
        if lost.words and not code:
            code = _EXCEPTION
        return Outcome(code, stopped or bool(ending.stopped_by))


def _exit_code(ending: process.Ending, report: failure_report.Report | None) -> int:
    """What Open MPI's mpirun returns, if it can know."""
    if not ending.failed and not report:
        return process.exit_code(ending.status, stopped_by=0)
    # It sometimes crashes when several ranks abort. What had to be ended has no status of its own.
    # Neither is the reason for the job's end.
    return ending.status if ending.status > 0 else _EXCEPTION


def _last_words(
    ending: process.Ending,
    report: failure_report.Report | None,
    states: last_words.States,
    lost: str,
    full: str,
) -> bytes:
    """What the launcher says at the end.

    `lost` is of a host that was, or "". `full` is of a directory without room that may be why
    mpirun was ended by a signal, or "".
    """
    if ending.stopped_by:
        return line(f"stopped by {process.name_of(ending.stopped_by)}")
    if report:
        last = last_words.of_report(report, states)
        heading = f"{report.heading} failed{' first' if last.is_first else ''}"
        return line(f"{heading}:\n{report.traceback.rstrip()}") + line(last.line)
    words = line(ends.WORDS) if ending.failed else b""
    end = last_words.first_end(states) if ending.status > 0 or ending.failed else None
    if end and (last_words.failed_by_itself(end, states) or not lost):
        return words + line(last_words.of_end(end, states))
    if lost:
        return words + line(lost)
    if not words and ending.status < 0:
        return line(f"signal {-ending.status} has ended mpirun{full and f', as when {full}'}")
    return words


def _end_strays(job: process.Job) -> bool:
    """Ends what ranks that have ended have left behind, so that mpirun can end."""
    ended = job.end_strays()
    if ended:
        say(
            f"ended {', '.join(ended)}, left behind by a rank: it held the rank's output open, for "
            "which mpirun would wait; redirect the output of what is to outlive the job"
        )
    return bool(ended)


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


def _finish(
    output: Output, words: Callable[[], bytes], signals: process.Signals, patience_s: float
) -> bool:
    """Lets the output be read to its end, unless that takes too long or a signal comes (True)."""
    output.finish(words)
    deadline_s = time.monotonic() + patience_s
    while not output.finished(timeout_s=0.05) and time.monotonic() < deadline_s:
        if signals.is_stopping(signals.wait(0)):
            return True
    return False


def say(text: str) -> None:
    """Writes a line of the launcher's own to stderr."""
    try:
        os.write(2, line(text))
    except OSError:
        pass  # nobody reads it


def line(text: str) -> bytes:
    """As it is written."""
    # Not by sys.stderr: its encoding need not know what a command line may hold.
    return f"hvdrun: {text}\n".encode(errors="backslashreplace")
