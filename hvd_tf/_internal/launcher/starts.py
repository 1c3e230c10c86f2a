# SPDX-License-Identifier: Apache-2.0
"""Which ranks have reached init(), for --start-timeout."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_tf._internal.launcher.process import Check
from hvd_tf._internal.launcher.rank_notices import RankNotices

_MOST_NAMED = 16


class Starts:
    """Owner: the launcher's main thread."""

    def __init__(
        self,
        notices: RankNotices,
        ranks: int,
        limit_s: float,
        waits_for: Callable[[], str] = lambda: "",
    ) -> None:
        """For one start.

        Args:
          notices: what ranks have told.
          ranks: how many there are.
          limit_s: how long a rank may take.
          waits_for: what keeps mpirun from starting any rank, and what to do about it. "": it has
            started some. Asked at the limit, before the job is ended.
        """
        self._notices, self._ranks, self._limit_s = notices, ranks, limit_s
        self._waits_for, self._reason = waits_for, ""
        self.late: list[int] = []

    def check(self) -> Check:
        """For the limit, which begins now. When it fails, `late` has the ranks that are missing."""

        def passes() -> bool:
            started = {rank for rank, state in self._notices.states().items() if state.started}
            self.late = [rank for rank in range(self._ranks) if rank not in started]
            if len(self.late) == self._ranks:
                self._reason = self._waits_for()
            return not self.late

        return Check(passes, time.monotonic() + self._limit_s)

    def words(self) -> str:
        """Why the job was ended."""
        named = ", ".join(map(str, self.late[:_MOST_NAMED]))
        if len(self.late) > _MOST_NAMED:
            named += f" and {len(self.late) - _MOST_NAMED} more"
        one = len(self.late) == 1
        remedy = f"see what {'it waits' if one else 'they wait'} for, or give more time"
        return (
            f"{'rank' if one else 'ranks'} {named} of {self._ranks} {'has' if one else 'have'} not "
            f"called hvd.init() {self._limit_s:g} s after the start (--start-timeout): "
            f"{self._reason or remedy}"
        )
