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
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hvd_tf._internal import blame, failure_report, native
from hvd_tf._internal.causes import Kind
from hvd_tf._internal.failure_report import Report

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
# A value of hvd_first_peer_end: others have given the peer up, and the peer itself said nothing.
_GIVEN_UP = 2
_LONGEST_LINE = 500
_LONGEST_PEER_TEXT = 4096
# Set by the launchers of Open MPI, PMIx and MPICH. For a rank that has not initialised hvd yet.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")

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


def launched_size(environ: Mapping[str, str]) -> int:
    """The number of ranks that a launcher has started. 1: there is no launcher."""
    return _number(environ, _SIZE_VARIABLES, 1)


def launched_rank(environ: Mapping[str, str]) -> int:
    """The number that the launcher has given to this rank. -1: there is no launcher."""
    return _number(environ, _RANK_VARIABLES, -1)


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
        time_ns = time.time_ns()
        lines = _format(kind, value, trace)
        if native.lib.hvd_size() > 1:
            self._end_job(kind, value, trace, time_ns, lines)
        else:
            self._end_rank(kind, value, trace, time_ns, lines)

    def _end_job(
        self,
        kind: type[BaseException],
        value: BaseException,
        trace: TracebackType | None,
        time_ns: int,
        lines: str,
    ) -> None:
        """Does not return."""
        start_s = time.monotonic()
        cause = blame.find_cause(value)
        blames_peer = blame.blames_peer(cause)
        first = _first_peer_failure(_PEER_WORDS_S if blames_peer else 0.0)
        rank = native.lib.hvd_rank()
        wait_s = self._grace_s + min(_STAGGER_S_A_RANK * rank, _LONGEST_STAGGER_S)
        # A silent rank does not end the job, so a rank that waited for it must do so.
        follows = first is not None and blames_peer and not first.is_silent
        wait_s += _FOLLOWER_EXTRA_S if first and not first.is_silent else 0.0
        reason = ""
        if first and first.is_silent and not (cause and cause.kind is Kind.RANK_GIVEN_UP):
            # The failure may first be known from data on its way, which says less.
            reason = f"hvd_tf: rank {first.rank} failed: {first.text}\n"
            lines += reason
        report = Report(time_ns, rank, os.uname().nodename, self._pid, lines, blames_peer)
        # hvdrun prints it at the very end. Under another launcher this rank does so.
        written = not follows and failure_report.write(report)
        last_words = "" if first or written else f"{report.heading} failed first:\n{lines}"
        _exit_at(start_s + wait_s + _STUCK_EXTRA_S, last_words)
        try:
            if first is not None and follows:
                self._print_consequence(kind, value, trace, rank, first)
            else:
                native.lib.hvd_announce_failure(_encode(_first_line(kind, value)))
                self._call_previous(kind, value, trace)
                _write_stderr(reason)
            _flush()
            time.sleep(max(0.0, start_s + wait_s - time.monotonic()))
            _write_stderr(last_words)
        except BaseException:  # the grace period was interrupted, or this code has a bug
            _write_stderr(lines + traceback.format_exc())
        finally:
            _flush()
            native.lib.hvd_abort(_EXIT_CODE)
            os._exit(_EXIT_CODE)

    def _end_rank(
        self,
        kind: type[BaseException],
        value: BaseException,
        trace: TracebackType | None,
        time_ns: int,
        lines: str,
    ) -> None:
        """Before init and within it, and with one rank. The launcher ends the peers."""
        rank, host = launched_rank(os.environ), os.uname().nodename
        abort = _abort_of_world()
        report = Report(
            time_ns,
            rank,
            host,
            self._pid,
            lines,
            blames_peer=blame.blames_peer(blame.find_cause(value)),
            # If not, a rank may have started this process and go on.
            ends_job=abort is not None,
        )
        failure_report.write(report)
        self._call_previous(kind, value, trace)
        # MPI_Finalize would wait for peers, which may wait for this rank in `init`.
        if abort is not None:
            _flush()
            _exit_at(time.monotonic() + _STUCK_EXTRA_S, "")
            abort()

    def _print_consequence(
        self,
        kind: type[BaseException],
        value: BaseException,
        trace: TracebackType | None,
        rank: int,
        first: _PeerFailure,
    ) -> None:
        if self.previous is not sys.__excepthook__:
            self._call_previous(kind, value, trace)
        _flush()
        _write_stderr(f"hvd_tf: rank {rank} ends because rank {first.rank} failed: {first.text}\n")

    def _call_previous(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            self.previous(kind, value, trace)
        except SystemExit:
            pass  # the job ends anyway
        except BaseException:
            _write_stderr("Error in sys.excepthook:\n" + traceback.format_exc())
            sys.__excepthook__(kind, value, trace)


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


def _number(environ: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    texts = (environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), otherwise)


def _first_peer_failure(patience_s: float) -> _PeerFailure | None:
    """The failure that a peer has announced, or announces within that time."""
    failed = ctypes.c_int(0)
    text = ctypes.create_string_buffer(_LONGEST_PEER_TEXT)
    deadline_s = time.monotonic() + patience_s
    while True:
        rank = native.lib.hvd_first_peer_end(ctypes.byref(failed), text, len(text))
        if rank >= 0 and failed.value:
            words = text.value.decode(errors="replace")
            return _PeerFailure(rank, words, is_silent=failed.value == _GIVEN_UP)
        if time.monotonic() >= deadline_s:
            return None
        time.sleep(0.01)


def _first_line(kind: type[BaseException], value: BaseException) -> str:
    try:
        text = _own_words(str(value).strip())
    except Exception:
        text = "its message cannot be shown"
    line = f"{kind.__name__}: {text}" if text else kind.__name__
    return line.splitlines()[0][:_LONGEST_LINE]


def _own_words(message: str) -> str:
    """The message without what TensorFlow puts before the words of an operation."""
    message = re.sub(r"^\{\{function_node .*?\}\} ", "", message)
    if not message.startswith("Graph execution error:"):
        return message
    before_nodes = message.partition("\n\t [[")[0]
    paragraph = [part for part in before_nodes.split("\n\n") if part.strip()][-1].strip()
    _, node, words = paragraph.rpartition("\nNode: ")
    return words.partition("\n")[2] if node else paragraph


def _format(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> str:
    try:
        return "".join(traceback.format_exception(kind, value, trace))
    except Exception:
        return _first_line(kind, value) + "\n"


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
