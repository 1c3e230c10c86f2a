# SPDX-License-Identifier: Apache-2.0
"""Ends a job whose peers wait for a rank that was killed, while the script around it goes on.

mpirun started the script, so it sees nothing of that. Without the script the rank itself would have
ended, and mpirun would have ended the job.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from hvd_tf._internal.launcher import last_words
from hvd_tf._internal.launcher.process import Check
from hvd_tf._internal.launcher.rank_notices import Notice, RankNotices, RankState

# Others may end just so, and their scripts go on: all ranks may have left by os._exit.
LIMIT_S = 5.0
_LOOK_EVERY_S = 1.0


class _Gone(NamedTuple):
    """A process that has gone."""

    notice: Notice
    seen_s: float
    """When that was seen first, by time.monotonic()."""
    seen_ns: int
    """The same in nanoseconds since 1970."""


class Killed:
    """Looks for them. Owner: the launcher's main thread."""

    def __init__(self, notices: RankNotices) -> None:
        """For one start."""
        self._notices = notices
        # By rank. They stay when the script runs the program again.
        self._gone: dict[int, _Gone] = {}
        self.words = ""
        """Why the job was ended."""

    def check(self) -> Check:
        """Fails when others have gone on for LIMIT_S."""

        def passes() -> bool:
            check.at_s = time.monotonic() + _LOOK_EVERY_S
            return self._look(self._notices.states(), time.monotonic(), time.time_ns())

        check = Check(passes, time.monotonic() + _LOOK_EVERY_S)
        return check

    def _look(self, states: Mapping[int, RankState], now_s: float, now_ns: int) -> bool:
        for rank, state in states.items():
            if state.ended:
                self._gone.pop(rank, None)  # mpirun sees that
            elif state.gone and not self._has(rank, state.gone, states):
                self._gone[rank] = _Gone(state.gone, now_s, now_ns)
        for rank, gone in self._gone.items():
            if now_s - gone.seen_s >= LIMIT_S and _is_missed(states, rank, gone.seen_ns):
                self.words = f"{last_words.of_killed(gone.notice)} went on; the job was ended"
                return False
        return True

    def _has(self, rank: int, notice: Notice, states: Mapping[int, RankState]) -> bool:
        """Whether this end is known, or one before it is still missed."""
        known = self._gone.get(rank)
        if known is None:
            return False
        return known.notice == notice or _is_missed(states, rank, known.seen_ns)


def _is_missed(states: Mapping[int, RankState], rank: int, seen_ns: int) -> bool:
    """Whether a rank is there that has begun with the one that was seen to have gone then."""
    present = (state.present for other, state in states.items() if other != rank)
    return any(notice is not None and notice.time_ns < seen_ns for notice in present)
