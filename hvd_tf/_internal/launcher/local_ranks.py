# SPDX-License-Identifier: Apache-2.0
"""The ranks of this host, when the user ends the job: they have time for it before mpirun is told.

Open MPI 5's mpirun kills a rank a quarter of a second after its SIGTERM, and MPICH's at once. Both
do so too as soon as another rank has ended. So the launcher gives the ranks their SIGTERM itself.
What watches over a rank (`rank_main.py`) then ends only after a lock is free, which the launcher
holds until all have ended.
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path

from hvd_tf._internal import failure_report
from hvd_tf._internal.launcher import marked
from hvd_tf._internal.launcher.mpirun import RANK_MAIN
from hvd_tf._internal.launcher.rank_main import HOLD


class LocalRanks:
    """Owner: the launcher's main thread."""

    def __init__(self, directory: str) -> None:
        """For one start, whose ranks the job's directory marks."""
        self._directory = directory
        self._asked: list[int] = []
        self._lock = -1

    def ask(self) -> None:
        """Asks each to end, with SIGTERM. One that is stopped goes on, as mpirun has it do."""
        found = _found(self._directory)
        if not found or not self._hold():
            return
        for group, members in found.items():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGTERM)
                os.killpg(group, signal.SIGCONT)
                self._asked += members

    def are_at_work(self) -> bool:
        """Whether some that have been asked have not ended."""
        return any(map(marked.runs, self._asked))

    def let_go(self) -> None:
        """Lets those that have ended go. For mpirun they end just now."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _hold(self) -> bool:
        """False: the file cannot be made."""
        path = Path(self._directory, HOLD)
        draft = path.with_name(f".{HOLD}")
        try:
            self._lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            draft.rename(path)  # nobody sees it without the lock
        except OSError:  # a full disk, say
            self.let_go()
        return self._lock >= 0


def _found(directory: str) -> dict[int, list[int]]:
    """Each rank's process group, which is that of what watches over it, and who else is in it.

    A script may have ended before the program that it runs. So the rank's command alone will not
    do. It counts where it has gone into another group: then what watches over it passes signals on.
    """
    by_path = [b"-I", b"-S", os.fsencode(RANK_MAIN)]
    found: dict[int, list[int]] = {}
    everybody = marked.parents_and_groups()
    for pid in marked.pids_of(failure_report.DIRECTORY_VARIABLE, directory):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            # The command itself, a fork at first, leads no group then.
            if line[1:4] == by_path and os.getpgid(pid) == pid:
                found[pid] = [p for p, near in everybody.items() if pid in near and p != pid]
    return found
