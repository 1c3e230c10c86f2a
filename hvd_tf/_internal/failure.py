# SPDX-License-Identifier: Apache-2.0
"""Ends the job after an uncaught Python exception, and tells the peers before.

Without this, the rank would wait in MPI_Finalize at its exit for peers, which wait for it. So the
hook below never returns if peers would be left waiting. It ends the job after a grace period. In
that time the peers' operations fail with the reason.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hvd_tf._internal import failure_report, launched, native
from hvd_tf._internal.uncaught import Uncaught, catch

GRACE_VARIABLE = "HVD_ABORT_GRACE_S"
_DEFAULT_GRACE_S = 2.0
# A rank that fails only because another one has failed waits this much longer for that rank to end
# the job.
_FOLLOWER_EXTRA_S = 1.0
# Ranks may fail together because a peer has left. They do not abort together, because Open MPI's
# mpirun has been seen to crash on that. The lowest rank goes first.
_STAGGER_S_A_RANK = 0.05
_LONGEST_STAGGER_S = 0.5
# Added to that, for a user's hook or an MPI_Abort that does not return.
_STUCK_EXTRA_S = 1.5
# How long a rank whose error names a peer waits for that peer's own failure message. The failure of
# a peer's operation is known here before the peer's program ends because of it.
_PEER_WORDS_S = 1.0
_EXIT_CODE = 1
_LONGEST_PEER_TEXT = 4096
ExceptHook = Callable[[type[BaseException], BaseException, "TracebackType | None"], Any]


def install() -> None:
    """Takes over sys.excepthook, and keeps the hook that is there. Does nothing the second time.

    `init` calls it first of all, because peers may already wait there. If a launcher has announced
    several ranks, it is called before `init`. With one rank, or none yet, an exception ends this
    rank as usual, but without waiting in MPI_Finalize.

    Raises:
      ValueError: HVD_ABORT_GRACE_S is not a number of seconds.
    """
    global _hook
    grace_s = read_grace_s(os.environ)
    if _hook is None:
        _hook = _Hook(sys.excepthook, grace_s)
        sys.excepthook = _hook


def uninstall() -> None:
    """Restores sys.excepthook. `shutdown` calls it."""
    global _hook
    if _hook is None:
        return
    if sys.excepthook is _hook:
        sys.excepthook = _hook.previous
    # A hook that was set later may still call ours.
    _hook.active = False
    _hook = None


def read_grace_s(environ: Mapping[str, str]) -> float:
    """Seconds between an uncaught exception and the end of the job."""
    text = environ.get(GRACE_VARIABLE)
    if text is None:
        return _DEFAULT_GRACE_S
    try:
        grace_s = float(text)
    except ValueError:
        grace_s = math.nan
    if not (math.isfinite(grace_s) and grace_s >= 0):
        raise ValueError(
            f"{GRACE_VARIABLE}={text!r} (seconds between an uncaught exception and the end of the "
            "job): must be a number of at least 0, such as 2"
        )
    return grace_s


@dataclass(frozen=True)
class _PeerFailure:
    rank: int
    text: str
    """The first line of its error."""
    is_silent: bool = False
    """It was silent, and others have given it up."""


@dataclass(frozen=True)
class _Plan:
    """How a rank with an uncaught exception ends the job."""

    wait_s: float
    """How long the peers have to fail with the reason, after the exception."""
    follows: bool
    """Whether another rank's failure is the reason, which that rank reports itself."""
    reason: str
    """What the exception does not say: a line about a rank that has been given up. Or empty."""


def _plan(uncaught: Uncaught, rank: int, first: _PeerFailure | None, grace_s: float) -> _Plan:
    wait_s = grace_s + min(_STAGGER_S_A_RANK * rank, _LONGEST_STAGGER_S)
    if first is None:
        return _Plan(wait_s, follows=False, reason="")
    if not first.is_silent:
        return _Plan(wait_s + _FOLLOWER_EXTRA_S, follows=uncaught.blames_peer, reason="")
    # A silent rank does not end the job, so a rank that waited for it must do so. That it failed
    # may first be known from data on its way, which says less.
    reason = f"hvd_tf: rank {first.rank} failed: {first.text}\n"
    return _Plan(wait_s, follows=False, reason="" if uncaught.was_told_of_silence else reason)


class _Hook:
    """The sys.excepthook between `install` and `uninstall`."""

    def __init__(self, previous: ExceptHook, grace_s: float) -> None:
        self.previous = previous
        self.active = True
        self._grace_s = grace_s
        # A forked child has no part in the job.
        self._pid = os.getpid()

    def __call__(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        concerns_job = self.active and self._pid == os.getpid()
        if not concerns_job or issubclass(kind, KeyboardInterrupt):
            self.previous(kind, value, trace)
            return
        uncaught = catch(kind, value, trace)
        if native.lib.hvd_size() > 1:
            self._end_job(uncaught)
        else:
            self._end_rank(uncaught)

    def _end_job(self, uncaught: Uncaught) -> None:
        """Does not return."""
        start_s = time.monotonic()
        first = _first_peer_failure(_PEER_WORDS_S if uncaught.blames_peer else 0.0)
        rank = native.lib.hvd_rank()
        plan = _plan(uncaught, rank, first, self._grace_s)
        report = uncaught.report(rank, also=plan.reason)
        # hvdrun prints it at the very end. Under another launcher this rank does so.
        written = not plan.follows and failure_report.write(report)
        last_words = ""
        if first is None and not written:
            last_words = f"{report.heading} failed first:\n{report.traceback}"
        _exit_at(start_s + plan.wait_s + _STUCK_EXTRA_S, last_words)
        try:
            if first is not None and plan.follows:
                self._print_consequence(uncaught, rank, first)
            else:
                native.lib.hvd_announce_failure(_encode(uncaught.first_line))
                self._call_previous(uncaught)
                _write_stderr(plan.reason)
            _flush()
            time.sleep(max(0.0, start_s + plan.wait_s - time.monotonic()))
            _write_stderr(last_words)
        except BaseException:  # the grace period was interrupted, or this code has a bug
            _write_stderr(report.traceback + traceback.format_exc())
        finally:
            _flush()
            native.lib.hvd_abort(_EXIT_CODE)
            os._exit(_EXIT_CODE)

    def _end_rank(self, uncaught: Uncaught) -> None:
        """Before init and within it, and with one rank. The launcher ends the peers."""
        abort = _abort_of_world()
        # Without ranks to end, a rank may have started this process and go on.
        failure_report.write(uncaught.report(launched.rank(), ends_job=abort is not None))
        self._call_previous(uncaught)
        # MPI_Finalize would wait for peers, which may wait for this rank in `init`.
        if abort is not None:
            _flush()
            _exit_at(time.monotonic() + _STUCK_EXTRA_S, "")
            abort()

    def _print_consequence(self, uncaught: Uncaught, rank: int, first: _PeerFailure) -> None:
        if self.previous is not sys.__excepthook__:
            self._call_previous(uncaught)
        _flush()
        _write_stderr(f"hvd_tf: rank {rank} ends because rank {first.rank} failed: {first.text}\n")

    def _call_previous(self, uncaught: Uncaught) -> None:
        try:
            self.previous(uncaught.kind, uncaught.value, uncaught.trace)
        except SystemExit:
            pass  # the job ends anyway
        except BaseException:
            _write_stderr("Error in sys.excepthook:\n" + traceback.format_exc())
            sys.__excepthook__(uncaught.kind, uncaught.value, uncaught.trace)


_hook: _Hook | None = None


def _abort_of_world() -> Callable[[], Any] | None:
    """What ends all ranks. None: this process is alone, or has not begun MPI."""
    if native.lib.hvd_launched_size() > 1:
        return lambda: native.lib.hvd_abort(_EXIT_CODE)
    # mpi4py may have been built with another MPI.
    mpi = getattr(sys.modules.get("mpi4py.MPI"), "__dict__", {})
    if not mpi or not mpi["Is_initialized"]() or mpi["Is_finalized"]():
        return None
    world = mpi["COMM_WORLD"]
    return (lambda: world.Abort(_EXIT_CODE)) if world.Get_size() > 1 else None


def _first_peer_failure(patience_s: float) -> _PeerFailure | None:
    """The failure that a peer has announced, or announces within that time."""
    kind = ctypes.c_int(0)
    text = ctypes.create_string_buffer(_LONGEST_PEER_TEXT)
    deadline_s = time.monotonic() + patience_s
    while True:
        rank = native.lib.hvd_first_peer_end(ctypes.byref(kind), text, len(text))
        if rank >= 0 and kind.value != native.PEER_LEFT:
            words = text.value.decode(errors="replace")
            return _PeerFailure(rank, words, is_silent=kind.value == native.PEER_GIVEN_UP)
        if time.monotonic() >= deadline_s:
            return None
        time.sleep(0.01)


def _exit_at(deadline_s: float, last_words: str) -> None:
    """Ends this process at that time of the monotonic clock, whatever its main thread does."""

    def wait_and_exit() -> None:
        time.sleep(max(0.0, deadline_s - time.monotonic()))
        _write_stderr(last_words)
        os._exit(_EXIT_CODE)

    try:
        threading.Thread(target=wait_and_exit, name="hvd-failure", daemon=True).start()
    except RuntimeError:
        pass  # no thread left: only a hanging hook or MPI could hold up the job


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue  # closed, or None


def _encode(text: str) -> bytes:
    return text.encode(errors="backslashreplace")


def _write_stderr(text: str) -> None:
    """Writes in one piece, also if sys.stderr was replaced."""
    view = memoryview(_encode(text))
    try:
        while view:
            view = view[os.write(2, view) :]
    except OSError:
        pass
