# SPDX-License-Identifier: Apache-2.0
"""A file that is locked as long as this process takes part in the job. Imports no TensorFlow.

What mpirun starts may be a script, which goes on when this process is killed. Nobody is told of
that. But the kernel lets go of the lock, so hvdrun sees it on its own host.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from hvd_tf._internal import failure_report, notices

PRESENT = "present"
"""What the notice in the file is about."""
_held: tuple[int, Path, int] | None = None
"""The process, the file and its descriptor."""


def file_of(directory: Path, rank: int) -> Path:
    """Where the file is in the job's directory."""
    return directory / f"rank-{rank}.{PRESENT}"


def begin(rank: int, environ: Mapping[str, str] = os.environ) -> None:
    """To be called where the rank is about to join others. Does nothing if no launcher asks."""
    global _held
    directory = environ.get(failure_report.DIRECTORY_VARIABLE)
    if not directory or not environ.get(notices.VARIABLE) or rank < 0:
        return
    facts = {"host": os.uname().nodename, "pid": os.getpid(), "time_ns": time.time_ns()}
    text = json.dumps({"what": PRESENT, "rank": rank, **facts}).encode()
    path = file_of(Path(directory), rank)
    draft = path.with_name(f".{path.name}")
    try:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        return  # on another host than hvdrun
    try:
        # Not flock's lock, which forked children would hold too.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(descriptor, text)
        draft.rename(path)
    except OSError:  # a full disk, or one that knows no locks
        os.close(descriptor)
        draft.unlink(missing_ok=True)
        return
    _close()
    _held = os.getpid(), path, descriptor


def end() -> None:
    """From now on this process may end in any way."""
    if _held is not None and _held[0] == os.getpid():  # not in a forked child
        _held[1].unlink(missing_ok=True)
    _close()


def is_held(path: Path) -> bool | None:
    """Whether the process that has left this file is there. None: there is no such file."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return None
    return False


def _close() -> None:
    global _held
    if _held is not None:
        os.close(_held[2])
    _held = None
