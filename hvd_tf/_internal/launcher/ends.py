# SPDX-License-Identifier: Apache-2.0
"""An mpirun whose job is over has to end too.

Open MPI's waits for ever in three cases that have been seen:
- A daemon tells of the first of its ranks that fails, and not of a second one. A rank of another
  host is killed, and a peer there aborts because of that. Then the peer counts as running.
- A process that a rank has left behind holds the rank's output open.
- The network to another host is down. The order to end does not arrive there, and its ssh does not
  end.
So when its last child has gone, the launcher ends what ranks have left behind, and then mpirun
itself. It also ends mpirun when a rank or its MPI has said that it aborts the job. It does all that
only after a while without any output of ranks, because mpirun may have much of it to hand on when
they have gone. What mpirun itself says is no reason to wait: it counts the messages that it holds
back, once in five seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from hvd_tf._internal.launcher import marked
from hvd_tf._internal.launcher.process import Check

# How long it may take after that. Open MPI 5's ends its ranks in half a second.
LIMIT_S = 5.0
_LOOK_EVERY_S = 1.0
WORDS = "mpirun did not end when the job was over, and was ended"


class Over:
    """Looks for it. Owner: the launcher's main thread."""

    def __init__(self) -> None:
        self._childless_at_s = math.inf
        self._aborted_at_s = math.inf
        self._has_ended_strays = False

    def check(
        self,
        pid: int,
        quiet_s: Callable[[], float],
        end_strays: Callable[[], bool],
        has_failed: Callable[[], bool],
        children_matter: bool,
    ) -> Check:
        """The check of a job. It fails when the job is over and its mpirun still there.

        Args:
          pid: mpirun's.
          quiet_s: how long there has been no output of ranks.
          end_strays: ends what ranks have left behind. False: there was nothing.
          has_failed: whether a rank, or its MPI, has told of what ends the job.
          children_matter: whether mpirun has a child as long as the job has a rank.
        """

        def passes() -> bool:
            now_s = time.monotonic()
            check.at_s = now_s + _LOOK_EVERY_S
            childless = children_matter and _is_childless(pid)
            self._childless_at_s = min(self._childless_at_s, now_s) if childless else math.inf
            if self._aborted_at_s == math.inf and has_failed():
                self._aborted_at_s = now_s
            if now_s - min(self._childless_at_s, self._aborted_at_s) < LIMIT_S:
                return True
            if quiet_s() < LIMIT_S:
                return True
            if childless and not self._has_ended_strays:
                self._has_ended_strays = True
                if end_strays():
                    self._childless_at_s = now_s  # mpirun has a reason to end now
                    return self._aborted_at_s == math.inf
            return False

        check = Check(passes, time.monotonic() + _LOOK_EVERY_S)
        return check


def _is_childless(pid: int) -> bool:
    """Whether it has had children, none of which runs any more."""
    try:
        # Each belongs to the thread that has started it.
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [
            int(child) for task in tasks for child in (task / "children").read_text().split()
        ]
        had_some = bool(children) or marked.has_collected_children(pid)
    except OSError:
        return False  # it has just ended, or the kernel does not tell
    return had_some and not any(map(marked.runs, children))
