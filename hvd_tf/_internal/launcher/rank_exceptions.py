# SPDX-License-Identifier: Apache-2.0
"""Which of the exceptions that processes of a job have told of has ended a rank.

What a rank starts inherits its environment. So a program that imports hvd_tf takes itself for the
rank, and tells of its exception. The rank may make nothing of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvd_tf._internal.failure_report import Report, first_of
from hvd_tf._internal.launcher.last_words import States, failed_by_itself, never_comes
from hvd_tf._internal.launcher.rank_notices import RankState

# Python's status after an uncaught exception, which a shell returns as it is.
_EXCEPTION = 1


def first_exception(reports: Sequence[Report], states: States) -> Report | None:
    """The first one that has ended a rank, or ends it now.

    Args:
      reports: what processes have told.
      states: what is known of the ranks.
    """
    own, of_others = [], {}
    for report in sorted(reports, key=lambda report: report.time_ns):
        if report.ends_job or _is_of(report, states.get(report.rank)):
            own.append(report)
        else:
            of_others[report.rank] = report  # what came before did not end the rank
    told = {report.rank for report in own}
    # A shell, say, and the shell has ended alike.
    ended = [report for rank, report in of_others.items() if rank not in told]
    return first_of([*own, *(report for report in ended if _has_failed(report.rank, states))])


def _is_of(report: Report, state: RankState | None) -> bool:
    """Whether the rank's own process has told it."""
    process = state.process if state else None
    return process is not None and (process.host, process.pid) == (report.host, report.pid)


def _has_failed(rank: int, states: States) -> bool:
    end = states[rank].ended if rank in states else None
    if end is None or end.told:
        return False
    return never_comes(end, states) or (end.status == _EXCEPTION and failed_by_itself(end, states))
