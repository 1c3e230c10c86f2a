# SPDX-License-Identifier: Apache-2.0
"""MPICH's shared memory: its ranks remove that only where they end in an orderly way."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import time
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_PATTERN = "mpich_shm_*"
# What has just been killed may use its memory for so much longer, on a busy machine.
_PATIENCE_S = 0.5


def remove_left(since_s: float) -> None:
    """Removes this user's segments that were made since then and that no process uses.

    MPICH tells nobody their names. They stay in use from the moment they are made.

    Args:
      since_s: a time.time() before the job's start.
    """
    deadline = time.monotonic() + _PATIENCE_S
    made = [path for path in _SHARED_MEMORY.glob(_PATTERN) if _is_mine(path, since_s)]
    while made := [path for path in made if _is_used(path)]:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


def _is_mine(path: Path, since_s: float) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    mine = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
    return mine and facts.st_mtime >= since_s


def _is_used(path: Path) -> bool:
    """Whether a process uses it. Removes it if none does."""
    # A look at all processes is not enough: those of another container are not seen here.
    # The kernel gives a lease for writing only to the one who alone has the file open or mapped.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # This signal tells that another process opens it. By default SIGIO would, which is fatal.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        path.unlink()
    except OSError as error:
        # Where the kernel has no leases it stays: nobody can know.
        return error.errno == errno.EAGAIN
    finally:
        os.close(file)
    return False
