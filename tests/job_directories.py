# SPDX-License-Identifier: Apache-2.0
"""Directories of the jobs that tests start. A later job removes those of a run that was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

# With the number of the process that has made it, for who looks. Segments of shared memory begin
# with "hvd", so this does not.
PREFIX = "runof"


class JobDirectory:
    """A new directory. It is locked as long as its process lives, so that others let it be.

    Not by the process' number: a container that shares /dev/shm has numbers of its own.
    """

    def __init__(self, parent: Path) -> None:
        # Locked before it has the name that others look for.
        path = Path(tempfile.mkdtemp(prefix="new", dir=parent))
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = path.rename(parent / f"{PREFIX}{os.getpid()}-{path.name[3:]}")

    def remove(self) -> None:
        """Removes it now. Else a job of a later process does."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(parent: Path) -> None:
    """Removes those in a directory that nobody has locked."""
    for path in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or another user's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
