# SPDX-License-Identifier: Apache-2.0
"""How a job has ended whose mpirun is Hydra, of MPICH or Intel MPI. It tells some of that wrong.

- A rank that fails before MPI_Init goes unseen where others are in it: they wait for ever.
- When a rank leaves MPI without a word, it kills the others. It may then return 0, or the status of
  one that it has killed.
- It returns the bare number of the signal that has ended a rank. Intel's returns 255.
"""

from __future__ import annotations

import re

from hvd_tf._internal.launcher import last_words, process
from hvd_tf._internal.launcher.process import Ending
from hvd_tf._internal.launcher.rank_notices import Notice, RankNotices

# On its own stdout. The second is Intel's.
_BY_SIGNAL = re.compile(
    rb"^(?:YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*\(signal (\d+)\)"
    rb"|=   KILLED BY SIGNAL: (\d+) \(.*\))$",
    re.MULTILINE,
)
_INTELS_BY_SIGNAL = 255
_FAILURE = 1


class Hydra:
    """What the ranks tell beside what it says. Owner: the launcher's main thread."""

    def __init__(self, told: RankNotices) -> None:
        self._told = told
        self._signal = 0

    def split(self, lines: bytes) -> list[tuple[None, bytes]]:
        """Looks at lines of its own. Output calls it."""
        if found := _BY_SIGNAL.search(lines):
            self._signal = self._signal or int(found[1] or found[2])
        return [(None, lines)]

    def first_failure(self) -> Notice | None:
        """The end of a rank that failed by itself, and that the others' follow from."""
        states = self._told.states()
        end = last_words.first_end(states)
        return end if last_words.failed_by_itself(end, states) else None

    def seen(self, ending: Ending) -> Ending:
        """The ending, which is a failure where ranks did not come to theirs.

        To be called when all has been read that the ranks have written.
        """
        if ending.status or ending.stopped_by:
            return ending
        # What watches over a rank tells of each end, unless it is killed.
        states = self._told.states().values()
        killed = any(state.process and not state.ended and not state.leaving for state in states)
        is_failure = killed or self.first_failure() is not None
        return ending._replace(status=_FAILURE) if is_failure else ending

    def code(self, ending: Ending) -> int:
        """What a shell would return for the rank that failed, or for mpirun."""
        if first := self.first_failure():
            return process.exit_code(first.status, stopped_by=0)
        if ending.failed:
            return _FAILURE  # what had to be ended has no status of its own
        if self._signal and ending.status in (self._signal, _INTELS_BY_SIGNAL):
            return 128 + self._signal
        return process.exit_code(ending.status, stopped_by=0)
