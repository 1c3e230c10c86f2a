# SPDX-License-Identifier: Apache-2.0
"""The launcher's last line about a failed job: which rank ended it, and how."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import NamedTuple

from hvd_tf._internal.failure_report import Report
from hvd_tf._internal.launcher.rank_notices import Notice, RankState

States = Mapping[int, RankState]


def first_end(states: States, before_ns: float = float("inf")) -> Notice | None:
    """The end that the others' ends follow from, of those before that time.

    A rank that has failed by itself comes first. One that has ended as if all were well comes
    second, because ranks end so in any order. A rank on which MPI has aborted comes last, because
    MPI does that when it misses a peer. What was asked to end is never the reason.
    """
    found = []
    for state in states.values():
        end = state.ended
        if not end or end.told or end.time_ns >= before_ns:
            continue
        if end.status == 0 and state.leaving:
            continue  # in an orderly way
        order = 2 if state.mpi_has_aborted else 1 if end.status == 0 else 0
        found.append((order, end.time_ns, end.rank, end))
    return min(found)[-1] if found else None


def failed_by_itself(end: Notice | None, states: States) -> bool:
    """Whether it is certain that this end is no consequence of anything else."""
    return end is not None and end.status != 0 and not states[end.rank].mpi_has_aborted


def never_comes(end: Notice, states: States) -> bool:
    """Whether others wait in `init` for this rank in vain: it never called that, and ended well.

    Open MPI ends the others only where they were in `init` before this end.
    """
    others = any(
        state.started and not state.started.of_some and not state.leaving
        for state in states.values()
    )
    return end.status == 0 and not end.told and not states[end.rank].started and others


def of_killed(gone: Notice) -> str:
    """That a rank was killed within a script. Goes on with what the script did."""
    return f"{gone.heading} was killed by a signal, or left by os._exit, while its script"


def of_end(end: Notice, states: States) -> str:
    """How a rank has ended."""
    gone = states[end.rank].gone
    if end.status == 0 and gone and gone.pid != end.pid:
        return f"{of_killed(gone)} went on and ended with status 0"
    if end.status < 0:
        number = -end.status
        try:
            name = f"signal {number} ({signal.Signals(number).name})"
        except ValueError:
            name = f"signal {number}"
        also = "" if number != signal.SIGKILL else ", as the kernel does when memory runs out"
        return f"{end.heading} was ended by {name}{also}"
    early = " while others went on" if end.status == 0 else ""
    return f"{end.heading} ended with status {end.status}{early}"


class OfReport(NamedTuple):
    """What a job comes to in which a rank has told of an exception."""

    line: str
    is_first: bool
    """Whether that rank was the first to fail."""
    status: int = 0
    """The job's, where mpirun cannot know it. Else 0."""


def of_report(report: Report, states: States) -> OfReport:
    """The line about it. Another rank may have ended before, which left no time to say anything."""
    end = first_end(states, report.time_ns)
    if end and (failed_by_itself(end, states) or report.blames_peer):
        return OfReport(of_end(end, states), is_first=False)
    left = [state.left for state in states.values() if state.left]
    earlier = [notice for notice in left if notice.time_ns < report.time_ns]
    if report.blames_peer and earlier:
        first = min(earlier, key=lambda notice: notice.time_ns)
        over = f"ended with status {first.status}" if first.status else "was over"
        line = f"{first.heading} left first: its program {over} while others went on"
        return OfReport(line, is_first=False, status=first.status)
    more = ", which names another rank as the reason" if report.blames_peer else ""
    return OfReport(f"{report.heading} ended by the uncaught exception above{more}", is_first=True)
