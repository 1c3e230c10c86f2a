# SPDX-License-Identifier: Apache-2.0
"""A started job: what ends it, and the last words and the exit code that follow from its end."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_tf._internal import failure_report
from hvd_tf._internal.launcher import ends, last_words, marked, process
from hvd_tf._internal.launcher.directories import Directories
from hvd_tf._internal.launcher.hydra import Hydra
from hvd_tf._internal.launcher.killed import Killed
from hvd_tf._internal.launcher.lost_hosts import LostHosts
from hvd_tf._internal.launcher.missed import Missed
from hvd_tf._internal.launcher.mpirun import Mpirun
from hvd_tf._internal.launcher.options import Options
from hvd_tf._internal.launcher.output import Output, tagged
from hvd_tf._internal.launcher.process import Check, Ending, Job, Signals
from hvd_tf._internal.launcher.rank_exceptions import first_exception
from hvd_tf._internal.launcher.rank_main import RANK_VARIABLES
from hvd_tf._internal.launcher.rank_notices import RankNotices
from hvd_tf._internal.launcher.remote import Remote, ssh_check
from hvd_tf._internal.launcher.saying import line, say
from hvd_tf._internal.launcher.starts import Starts
from hvd_tf._internal.launcher.unended import Unended

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


class Course:
    """What happens to one started job. Owner: the launcher's main thread."""

    def __init__(
        self,
        options: Options,
        launcher: Mpirun,
        directories: Directories,
        told: RankNotices,
        remote: Remote | None,
    ) -> None:
        """To be made before mpirun is started.

        Args:
          options: the job's.
          launcher: what starts its ranks.
          directories: of this start.
          told: what its ranks tell.
          remote: None where all ranks are on this machine.
        """
        self._options, self._launcher = options, launcher
        self._directories, self._told = directories, told
        self._hydra = Hydra(told) if launcher.is_hydra else None
        self._lost = LostHosts(remote, told.heard_of)
        limit_s = options.start_limit_s
        self._starts = limit_s and Starts(told, options.ranks, limit_s, self._waits_for)
        self._killed, self._missed = Killed(told), Missed(told)

    def run(self, job: Job, output: Output, env: Mapping[str, str], signals: Signals) -> Outcome:
        """Waits for the end of a job that has just been started. Writes all that is to be read.

        Args:
          job: it has the environment `env`.
          output: not started, and without the job's own streams.
          env: variables.
          signals: to the launcher.
        """
        self._read(job, output)
        unended = Unended(self._told, self._options.ranks, env, say)
        ending = job.wait(self._checks(job, output, unended))
        patience_s = _UNREAD_OUTPUT_S if ending.stopped_by else math.inf
        stopped = _finish(output, lambda: self._words(ending, unended, output), signals, patience_s)
        if self._lost.words and not ending.stopped_by:
            job.kill()  # mpirun's status may say that all is well
        return Outcome(self._code(ending), stopped or bool(ending.stopped_by))

    def _read(self, job: Job, output: Output) -> None:
        hydra = self._hydra
        split = self._lost.splitting(hydra.split if hydra else tagged(self._launcher.major))
        for pipe, sink in ((job.stdout, 1), (job.stderr, 2)):
            # One of its own, to be closed when it has been read to its end.
            output.add(os.dup(pipe.fileno()), sink, split, own=True)
            pipe.close()
        output.start()

    def _checks(self, job: Job, output: Output, unended: Unended) -> list[Check]:
        """What ends the job while mpirun goes on."""
        over = ends.Over().check(
            job.pid,
            output.quiet_s,
            end_strays=lambda: _end_strays(job),
            has_failed=self._has_failed,
            children_matter=self._has_children(),
        )
        starts = [self._starts.check()] if self._starts else []
        return [over, unended.check(), self._killed.check(), self._missed.check(), *starts]

    def _exception(self) -> failure_report.Report | None:
        reports = failure_report.read_all(self._directories.job)
        return first_exception(reports, self._told.states())

    def _has_failed(self) -> bool:
        states = self._told.states()
        ended = [state.ended for state in states.values() if state.ended]
        missed = any(last_words.never_comes(end, states) for end in ended)
        unseen = self._hydra and self._hydra.first_failure()
        return bool(self._told.mpi_has_aborted or missed or unseen or self._exception())

    def _has_children(self) -> bool:
        """Whether mpirun has a child as long as there are ranks."""
        # The ssh of Open MPI 4 may end as soon as the daemon on the other host has begun.
        launcher = self._launcher
        return not self._options.hosts or launcher.is_hydra or launcher.major >= 5

    def _waits_for(self) -> str:
        """Why not even this host has a rank: mpirun starts none before it has all hosts."""
        elsewhere = [host.name for host in self._options.hosts if not host.is_local]
        if len(elsewhere) == len(self._options.hosts):
            return ""  # there is none on this host, or it cannot be told
        mark = (failure_report.DIRECTORY_VARIABLE, str(self._directories.job))
        if not elsewhere or marked.has_marked(*mark, RANK_VARIABLES):
            return ""
        check = ssh_check(elsewhere, self._options.ssh_arguments)
        return f"mpirun has started none, as when a host does not answer: {check}"

    # Once all that the ranks have written has been read.

    def _seen(self, ending: Ending) -> tuple[Ending, failure_report.Report | None]:
        final = self._hydra.seen(ending) if self._hydra else ending
        return final, self._exception() if final.status and not final.stopped_by else None

    def _words(self, ending: Ending, unended: Unended, output: Output) -> bytes:
        starts = self._starts
        late = starts.words() if starts and starts.late else unended.words
        late = late or self._killed.words or self._missed.words
        if late and not ending.stopped_by:
            return line(late)
        full = self._directories.full() if -ending.status == signal.SIGBUS else ""
        states = self._told.states()
        words = _last_words(*self._seen(ending), states, self._lost.words, full)
        if not words and ending.status > 0 and not states and output.is_silent:
            why = f"ended with status {ending.status} and said nothing"
            return line(f"mpirun {why}: --dry-run shows its options")
        return words

    def _code(self, ending: Ending) -> int:
        if ending.stopped_by:
            return process.exit_code(ending.status, ending.stopped_by)
        if self._starts and self._starts.late:
            return _LATE
        if self._missed.words:
            return self._missed.status or _EXCEPTION
        final, report = self._seen(ending)
        of_rank = last_words.of_report(report, self._told.states()).status if report else 0
        of_mpirun = self._hydra.code(final) if self._hydra else _exit_code(final, report)
        return of_rank or of_mpirun or (_EXCEPTION if self._lost.words else 0)


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
