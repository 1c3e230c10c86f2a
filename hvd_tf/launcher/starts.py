# SPDX-License-Identifier: Apache-2.0
"""Which ranks have reached init(), for --start-timeout."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from hvd_tf import start_notice
from hvd_tf.launcher.process import Check

_MOST_NAMED = 16


class Starts:
    """Owner: the launcher's main thread; see() is called by that of the output."""

    def __init__(
        self,
        directory: Path,
        ranks: int,
        limit_s: float,
        waits_for: Callable[[], str] = lambda: "",
    ) -> None:
        """For one start.

        Args:
          directory: the job's.
          ranks: how many there are.
          limit_s: how long a rank may take.
          waits_for: what keeps mpirun from starting any rank, and what to do about it; "" where it
            has started some. Asked at the limit, when the job has not been ended yet.
        """
        self._directory, self._ranks, self._limit_s = directory, ranks, limit_s
        self._waits_for, self._reason = waits_for, ""
        self.word = secrets.token_hex(8)
        self._line = start_notice.line(self.word)
        self._elsewhere: set[int] = set()
        self.late: list[int] = []

    def see(self, rank: int, lines: bytes) -> bytes:
        """Takes a rank's notice out of what it writes."""
        if self._line not in lines:
            return lines
        self._elsewhere.add(rank)
        rest = lines.replace(self._line, b"")
        return rest if not rest or rest.endswith(b"\n") else rest + b"\n"

    def check(self) -> Check:
        """For the limit, which begins now; `late` then has the ranks that are missing."""

        def passes() -> bool:
            started = self._elsewhere | start_notice.ranks_in(self._directory)
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
