# SPDX-License-Identifier: Apache-2.0
"""An mpirun that has no process left to wait for has to end too.

Open MPI's has been seen to wait for ever when a rank on another host was killed and a peer here
aborted over that: all ranks and the daemon on the other host had gone.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from hvd_tf.launcher.process import Check

# How long it may take after the last of its children, ranks or ssh, has gone.
LIMIT_S = 5.0
_LOOK_EVERY_S = 1.0
WORDS = "mpirun did not end after its last process had, and was ended"


class Childless:
    """Looks for it. Owner: the launcher's main thread."""

    def __init__(self, pid: int) -> None:
        """pid: mpirun's."""
        self._tasks = Path(f"/proc/{pid}/task")
        self._had_children = False
        self._childless_at_s = math.inf
        self.check = Check(self._passes, time.monotonic() + _LOOK_EVERY_S)

    def _passes(self) -> bool:
        now_s = time.monotonic()
        self.check.at_s = now_s + _LOOK_EVERY_S
        if self._has_children():
            self._had_children, self._childless_at_s = True, math.inf
        elif self._had_children:
            self._childless_at_s = min(self._childless_at_s, now_s)
        return now_s - self._childless_at_s < LIMIT_S

    def _has_children(self) -> bool:
        try:
            # Each belongs to the thread that has started it.
            texts = [(task / "children").read_text() for task in self._tasks.iterdir()]
        except OSError:
            return True  # it has just ended, or the kernel does not tell
        return any(_runs(pid) for text in texts for pid in text.split())


def _runs(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
