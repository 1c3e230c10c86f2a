# SPDX-License-Identifier: Apache-2.0
"""MPICH's shared memory: its ranks remove that only where they end in an orderly way."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_PATTERN = "mpich_shm_*"
_PF_EXITING = 4


def remove_left(since_s: float) -> None:
    """Removes this user's segments that were made since then and that no process uses.

    MPICH tells nobody their names. They stay in use from the moment they are made.

    Args:
      since_s: a time.time() before the job's start.
    """
    made = [path for path in _SHARED_MEMORY.glob(_PATTERN) if _is_mine(path, since_s)]
    if not made:
        return
    # Looked for after them, so that one is not missed that another job makes just now.
    used = set(_used())
    for path in made:
        if os.fsencode(path) not in used:
            with suppress(OSError):
                path.unlink()


def _is_mine(path: Path, since_s: float) -> bool:
    try:
        facts = path.lstat()
    except OSError:
        return False
    mine = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
    return mine and facts.st_mtime >= since_s


def _is_exiting(process: Path) -> bool:
    try:
        flags = (process / "stat").read_text().rpartition(")")[2].split()[6]
    except OSError:
        return True
    return bool(int(flags) & _PF_EXITING)


def _used() -> Iterator[bytes]:
    """Paths of what processes have open or mapped."""
    for process in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        if _is_exiting(process):
            continue  # what has just been killed has its files open for a moment longer
        with suppress(OSError):
            for line in (process / "maps").read_bytes().splitlines():
                yield line[line.find(b"/") :] if b"/" in line else b""
        with suppress(OSError):
            for file in (process / "fd").iterdir():
                with suppress(OSError):
                    yield os.fsencode(os.readlink(file))
