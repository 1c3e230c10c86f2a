# SPDX-License-Identifier: Apache-2.0
"""Names ranks that have not ended when all others have, and ends those that are frozen.

A rank that still works then, on an export say, is left alone: nobody waits for it. One that is
stopped by a signal would keep the job for ever. As long as their programs go on, ranks themselves
look for one that is frozen. Once these are over, the launcher does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from hvd_tf._internal.launcher.process import Check
from hvd_tf._internal.launcher.rank_notices import RankNotices, RankState

_LOOK_EVERY_S = 1.0
# Horovod's names for the same.
_WARNING = ("HVD_STALL_WARNING_S", "HOROVOD_STALL_CHECK_TIME_SECONDS")
_SHUTDOWN = ("HVD_STALL_SHUTDOWN_S", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
_OF_HOROVOD = (_WARNING[1], _SHUTDOWN[1])
_DEFAULT_WARNING_S = 60.0
_NO_LIMITS = "HOROVOD_STALL_CHECK_DISABLE"


class Unended:
    """Looks for them. Owner: the launcher's main thread."""

    def __init__(
        self,
        notices: RankNotices,
        ranks: int,
        environ: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """For one start.

        Args:
          notices: what ranks have told.
          ranks: how many there are.
          environ: theirs, for the knobs about stalls.
          say: writes a line of the launcher's.
        """
        self._notices, self._ranks, self._say = notices, ranks, say
        # As in the ranks: a number above 0.
        if re.match(r"\s*\+?0*[1-9]", environ.get(_NO_LIMITS, "")):
            environ = {name: text for name, text in environ.items() if name not in _OF_HOROVOD}
            environ = {_WARNING[0]: "0", **environ}
        self._shutdown_s = _seconds(environ, _SHUTDOWN, 0.0)
        self._warning_s = _seconds(environ, _WARNING, _DEFAULT_WARNING_S)
        if 0 < self._shutdown_s <= self._warning_s:
            self._warning_s = self._shutdown_s / 2
        self._rest: list[int] = []
        # Counted by looks: the launcher may have been stopped itself.
        self._rest_s = self._frozen_s = 0.0
        self._has_warned = False
        self.words = ""
        """Why the job was ended."""

    def check(self) -> Check:
        """Fails when only frozen ranks are left, for longer than HVD_STALL_SHUTDOWN_S."""
        looked_at_s = time.monotonic()

        def passes() -> bool:
            nonlocal looked_at_s
            now_s = time.monotonic()
            since_s, looked_at_s = min(now_s - looked_at_s, 2 * _LOOK_EVERY_S), now_s
            check.at_s = now_s + _LOOK_EVERY_S
            return self._look(self._notices.states(), since_s)

        check = Check(passes, looked_at_s + _LOOK_EVERY_S)
        return check

    def _look(self, states: Mapping[int, RankState], since_s: float) -> bool:
        """Looks at what is known so long after the last look. False: the job is to be ended."""
        left = {rank for rank, state in states.items() if state.left}
        if not left:
            self._rest = []
            return True
        stopped = {rank for rank, state in states.items() if state.is_stopped}
        rest = [rank for rank in range(self._ranks) if rank not in left or rank in stopped]
        if rest != self._rest:
            self._rest, self._has_warned = rest, False
            self._rest_s = self._frozen_s = 0.0
        if not rest:
            return True
        self._rest_s += since_s
        self._frozen_s = self._frozen_s + since_s if stopped.issuperset(rest) else 0.0
        if 0 < self._shutdown_s <= self._frozen_s:
            self.words = (
                f"{_named(states, rest)} frozen: stopped by a signal for {self._shutdown_s:g} s "
                "(HVD_STALL_SHUTDOWN_S) while all others had ended; the job was ended"
            )
            return False
        # Programs that are no jobs of hvd_tf's end when they like.
        expected = all(rank in states and states[rank].started for rank in rest)
        if 0 < self._warning_s <= self._rest_s and expected and not self._has_warned:
            self._has_warned = True
            self._say(self._warning(states, stopped))
        return True

    def _warning(self, states: Mapping[int, RankState], stopped: set[int]) -> str:
        text = f"{_named(states, self._rest)} still there {self._warning_s:g} s after all others "
        if stopped.issuperset(self._rest):
            return f"{text}had ended: stopped by a signal; 'kill -CONT <pid>' lets it go on"
        return f"{text}had ended: at work, or waiting for something"


def _named(states: Mapping[int, RankState], ranks: list[int]) -> str:
    """Such as "rank 1 (host a, pid 7) is"."""
    processes = ((rank, states[rank].process if rank in states else None) for rank in ranks)
    named = ", ".join(process.heading if process else f"rank {rank}" for rank, process in processes)
    return f"{named} {'is' if len(ranks) == 1 else 'are'}"


def _seconds(environ: Mapping[str, str], names: tuple[str, ...], otherwise: float) -> float:
    """0 where it is no such number: the ranks refuse it then."""
    text = next((environ[name] for name in names if environ.get(name)), "")
    try:
        seconds = float(text) if text else otherwise
    except ValueError:
        return 0.0
    return seconds if seconds >= 0 else 0.0
