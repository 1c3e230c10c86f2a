# SPDX-License-Identifier: Apache-2.0
"""An mpirun whose job is over has to end too.

Open MPI's has been seen to wait for ever when a rank on another host was killed and a peer here
aborted over that: all ranks had gone. So it is ended some seconds after its last child has gone,
and as long after a rank's MPI has said that it aborts the job.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

from hvd_tf.launcher.process import Check

# How long it may take after that. It gives ranks about a second.
LIMIT_S = 5.0
_LOOK_EVERY_S = 1.0
WORDS = "mpirun did not end when the job was over, and was ended"
# Open MPI's, on a rank's stderr, just before it aborts.
_ABORTS = re.compile(rb"^\[[^\]\n]+\] \*\*\* MPI_ERRORS_ARE_FATAL \(processes in ", re.MULTILINE)


class Over:
    """Looks for it. Owner: the launcher's main thread; see() is called by that of the output."""

    def __init__(self) -> None:
        self._had_children = False
        self._childless_at_s = math.inf
        self._aborted_at_s = math.inf

    def see(self, lines: bytes) -> None:
        """Looks at lines of a rank."""
        if self._aborted_at_s == math.inf and _ABORTS.search(lines):
            self._aborted_at_s = time.monotonic()

    def check(self, pid: int) -> Check:
        """For the job of the mpirun with that pid; fails when it is over and mpirun still there."""

        def passes() -> bool:
            now_s = time.monotonic()
            check.at_s = now_s + _LOOK_EVERY_S
            if _has_children(pid):
                self._had_children, self._childless_at_s = True, math.inf
            elif self._had_children:
                self._childless_at_s = min(self._childless_at_s, now_s)
            return now_s - min(self._childless_at_s, self._aborted_at_s) < LIMIT_S

        check = Check(passes, time.monotonic() + _LOOK_EVERY_S)
        return check


def _has_children(pid: int) -> bool:
    try:
        # Each belongs to the thread that has started it.
        tasks = Path(f"/proc/{pid}/task").iterdir()
        texts = [(task / "children").read_text() for task in tasks]
    except OSError:
        return True  # it has just ended, or the kernel does not tell
    return any(_runs(child) for text in texts for child in text.split())


def _runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
