# SPDX-License-Identifier: Apache-2.0
"""Ends a job in which ranks wait in `init`, not for the first time, for one that will not come.

The program of that rank is over. Its process waits for MPI to end, which takes the others. So they
would wait for each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from hvd_tf._internal.launcher.process import Check
from hvd_tf._internal.launcher.rank_notices import Notice, RankNotices, RankState

# Ranks may find it out themselves, as within hvd.elastic.run, and say more about it.
LIMIT_S = 5.0
_LOOK_EVERY_S = 1.0
_MOST_NAMED = 16


class Missed:
    """Looks for it. Owner: the launcher's main thread."""

    def __init__(self, notices: RankNotices) -> None:
        """For one start."""
        self._notices = notices
        self._first: Notice | None = None
        self._since_s = 0.0
        self.words = ""
        """Why the job was ended."""
        self.status = 0
        """What the rank has ended with."""

    def check(self) -> Check:
        """Fails when ranks have waited so for LIMIT_S."""

        def passes() -> bool:
            check.at_s = time.monotonic() + _LOOK_EVERY_S
            return self._look(self._notices.states(), time.monotonic())

        check = Check(passes, time.monotonic() + _LOOK_EVERY_S)
        return check

    def _look(self, states: Mapping[int, RankState], now_s: float) -> bool:
        over = [state.leaving for state in states.values() if state.leaving is state.left]
        missed = [end for end in over if end is not None and _waiting(end, states)]
        first = min(missed, key=lambda end: end.time_ns) if missed else None
        if first is None or first != self._first:
            self._first, self._since_s = first, now_s
            return True
        if now_s - self._since_s < LIMIT_S:
            return True
        self.status = first.status
        over_by = f"ended with status {first.status}" if first.status else "was over"
        self.words = (
            f"{first.heading} left first: its program {over_by} while "
            f"{_named(_waiting(first, states))} for it in hvd.init(); the job was ended"
        )
        return False


def _waiting(end: Notice, states: Mapping[int, RankState]) -> list[int]:
    """The ranks that wait in a later call of init() than that rank has taken part in."""
    return [
        rank
        for rank, state in states.items()
        if state.waits_again and state.started and state.started.completed >= end.completed
    ]


def _named(ranks: list[int]) -> str:
    """Such as "rank 1 waits"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits"
    more = len(ranks) - _MOST_NAMED
    named = ", ".join(map(str, sorted(ranks)[:_MOST_NAMED]))
    return f"ranks {named}{f' and {more} more' if more > 0 else ''} wait"
