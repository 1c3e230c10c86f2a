# SPDX-License-Identifier: Apache-2.0
"""The job's processes: starts mpirun, passes signals on, and sees to it that nothing stays."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, NamedTuple

from hvd_tf._internal import failure_report
from hvd_tf._internal.launcher import marked
from hvd_tf._internal.launcher.file_limit import FileLimit
from hvd_tf._internal.launcher.local_ranks import LocalRanks

# How long the ranks of this host have to end when they are asked to, and then mpirun.
KILL_AFTER_S = 3.0
_LOOK_EVERY_S = 0.02
_PR_SET_PDEATHSIG = 1
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORWARDED = (signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """While it is entered, signals to this process are waited for instead of interrupting it.

    Those that the parent had it ignore (nohup, a shell's background job) stay ignored.
    """

    def __init__(self) -> None:
        self._stopping = {s for s in _STOPPING if signal.getsignal(s) != signal.SIG_IGN}
        self._all = {*self._stopping, *_FORWARDED, signal.SIGCHLD}
        self.mask_before: set[int] = set()

    def __enter__(self) -> Signals:
        # Where the parent ignored it, the kernel would reap mpirun and its status be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.mask_before = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._all))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self.wait(0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask_before)

    def wait(self, timeout_s: float | None) -> int:
        """The number of the next signal. 0: none came in that time (None: no limit)."""
        if timeout_s is None:
            return signal.sigwaitinfo(self._all).si_signo
        found = signal.sigtimedwait(self._all, max(timeout_s, 0.0))
        return found.si_signo if found else 0

    def is_stopping(self, number: int) -> bool:
        """Whether this one asks for the end of the job."""
        return number in self._stopping


@dataclass(eq=False)
class Check:
    """Something that is looked at while the job runs, and ends it where it fails."""

    passes: Callable[[], bool]
    """Whether the job may go on; may set at_s for another look."""
    at_s: float
    """When, by time.monotonic()."""


class Ending(NamedTuple):
    """How a job ended."""

    status: int
    """mpirun's, as subprocess has it."""
    stopped_by: int
    """The signal that asked for it, or 0."""
    failed: Check | None
    """The check that asked for it."""


class Job:
    """A started mpirun. Owner: the launcher's main thread."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        signals: Signals,
        file_limit: FileLimit,
    ) -> None:
        """Starts mpirun. Its own streams are pipes, `stdout` and `stderr`."""
        self._directory = env[failure_report.DIRECTORY_VARIABLE]
        self._signals = signals
        self._ranks = LocalRanks(self._directory)
        self._process = subprocess.Popen(
            arguments,
            env=dict(env),
            stdin=subprocess.DEVNULL,  # the ranks see to that themselves
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A Ctrl-C of the terminal reaches this process only, which passes it on once.
            start_new_session=True,
            # No thread has been started yet, so this is safe.
            preexec_fn=_child_setup(signals.mask_before, file_limit),
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.stdout: IO[bytes] = self._process.stdout
        self.stderr: IO[bytes] = self._process.stderr

    def wait(self, checks: Sequence[Check] = ()) -> Ending:
        """Waits for mpirun, and sees to it that nothing of the job outlives it."""
        stopped_by, failed, kill_at_s = 0, None, math.inf
        pending = list(checks)
        while (status := self._process.poll()) is None:
            at_s = min([kill_at_s, *(check.at_s for check in pending)])
            number = self._signals.wait(None if at_s == math.inf else at_s - time.monotonic())
            is_first = self._signals.is_stopping(number) and not stopped_by
            if is_first:
                stopped_by = number
            if number in _FORWARDED:
                self._pass_on(number)
            elif is_first and kill_at_s == math.inf:
                self._ranks.ask()
                pending = [self._asked()]
            elif not number and kill_at_s == math.inf:
                if check := _first_failed(pending):
                    failed = None if stopped_by else check
                    kill_at_s, pending = time.monotonic() + KILL_AFTER_S, []
                    self._pass_on(stopped_by or signal.SIGTERM)
                    self._ranks.let_go()
            elif number != signal.SIGCHLD:
                # The limit has passed, or this was the second request.
                self.kill()
                status = self._process.wait()
                break
        if status or stopped_by or failed:
            self.kill()
        self._ranks.let_go()
        return Ending(status, stopped_by, failed)

    @property
    def pid(self) -> int:
        """Mpirun's."""
        return self._process.pid

    def kill(self) -> None:
        """Ends what there still is of the job at once, wherever mpirun or a rank has put it."""
        marked.kill_marked(failure_report.DIRECTORY_VARIABLE, self._directory)

    def end_strays(self) -> list[str]:
        """Ends what is left of the job on this host and holds mpirun's pipes open. Names each."""
        return marked.end_strays(failure_report.DIRECTORY_VARIABLE, self._directory, self.pid)

    def _asked(self) -> Check:
        """Fails when the ranks of this host have ended, or have had their time."""
        limit_s = time.monotonic() + KILL_AFTER_S

        def passes() -> bool:
            check.at_s = time.monotonic() + _LOOK_EVERY_S
            return self._ranks.are_at_work() and time.monotonic() < limit_s

        check = Check(passes, time.monotonic())
        return check

    def _pass_on(self, number: int) -> None:
        # Not to the group: MPICH's proxies are in it, and mpirun tells them itself.
        if self._process.poll() is None:
            marked.send(self._process.pid, number)


def _first_failed(checks: Sequence[Check]) -> Check | None:
    """Looks at those whose time has come."""
    for check in checks:
        if check.at_s <= time.monotonic():
            check.at_s = math.inf
            if not check.passes():
                return check
    return None


def exit_code(status: int, stopped_by: int) -> int:
    """What the launcher returns, by a shell's rule: 128 + n for signal n."""
    if stopped_by:
        return 128 + stopped_by
    return status if status >= 0 else 128 - status


def name_of(number: int) -> str:
    """Such as "SIGINT"."""
    return signal.Signals(number).name


def _child_setup(mask: set[int], file_limit: FileLimit) -> Callable[[], None]:
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def setup() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        file_limit.restore()
        # A launcher that is killed itself can remove nothing. mpirun then ends the ranks.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return setup
