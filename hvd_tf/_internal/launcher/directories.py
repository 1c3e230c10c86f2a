# SPDX-License-Identifier: Apache-2.0
"""A job's private directories. Its end removes them, or a later start does."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
# A rank's segment of Open MPI has 16 MiB. There may be a window beside it.
_SEGMENT_BYTES_A_RANK = 24 << 20
# Open MPI's mpirun of two ranks is content with this.
_FEW_BYTES = 1 << 20
_JOB_PREFIX = "hvdrun."
_SEGMENTS_PREFIX = "mpi.hvdrun."
# Held by the launcher as long as it lives. Not its pid: a container that shares the directory
# has pids of its own.
_LOCK = "lock"
_DRAFT = ".lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# A directory may be that old without a lock: its launcher is about to make one.
_YOUNG_S = 60.0


@dataclass(frozen=True)
class Directories:
    """Where a job keeps its files. Only its user can look into them."""

    job: Path
    segments: Path
    """For shared memory: in /dev/shm where that is large enough, else the same."""

    def full(self) -> str:
        """What is wrong if there is hardly any room left for mpirun's own files. Else ""."""
        try:
            free_bytes = _free_bytes(self.job)
        except OSError:
            return ""  # it is gone
        if free_bytes >= _FEW_BYTES:
            return ""
        return (
            f"{self.job.parent} has no room for files that mpirun maps into its memory: "
            f"{free_bytes >> 10} KB are free; set TMPDIR to a directory with more"
        )


@contextmanager
def private_directories(ranks: int) -> Iterator[Directories]:
    """Makes them, and removes them at the end. Also removes those of launchers that were killed.

    Raises:
      OSError: no directory can be made below TMPDIR.
    """
    _remove_abandoned(Path(tempfile.gettempdir()), _JOB_PREFIX)
    _remove_abandoned(_SHARED_MEMORY, _SEGMENTS_PREFIX)
    with ExitStack() as stack:
        segments = job = stack.enter_context(_directory(Path(tempfile.gettempdir()), _JOB_PREFIX))
        if _has_room(_SHARED_MEMORY, ranks * _SEGMENT_BYTES_A_RANK):
            segments = stack.enter_context(_directory(_SHARED_MEMORY, _SEGMENTS_PREFIX))
        yield Directories(job, segments)


@contextmanager
def kept_directory() -> Iterator[Path]:
    """One that all starts of a job share. Raises OSError as `private_directories` does."""
    with _directory(Path(tempfile.gettempdir()), _JOB_PREFIX) as path:
        yield path


@contextmanager
def _directory(parent: Path, prefix: str) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        draft = path / _DRAFT
        lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(lock, _owner())
            # Another launcher may look at any moment. It must see a held lock or none.
            draft.rename(path / _LOCK)
            yield path
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    try:
        names = os.listdir(parent)
    except OSError:
        return
    # As tempfile makes them. A user's may begin so too.
    made = re.compile(re.escape(prefix) + "[a-z0-9_]{8}")
    for path in (parent / name for name in names if made.fullmatch(name)):
        try:
            _remove_if_abandoned(path)
        except OSError:
            continue  # gone meanwhile, or not ours to judge


def _remove_if_abandoned(path: Path) -> None:
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        return
    try:
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        # Its launcher had put nothing else in it.
        if time.time() - facts.st_mtime > _YOUNG_S and set(os.listdir(path)) <= {_DRAFT}:
            shutil.rmtree(path, ignore_errors=True)
        return
    try:
        # Where a file system has locks for each host alone, another host's would seem to be free.
        # Containers of one machine have different names, and a machine has been started anew.
        owner = set(os.read(lock, 256).split(b"\n"))
        if owner != {b""} and owner.isdisjoint(_owner().split(b"\n")):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its launcher is alive
    finally:
        os.close(lock)
    shutil.rmtree(path, ignore_errors=True)


def _owner() -> bytes:
    """This machine's start and name."""
    try:
        boot = _BOOT.read_bytes().strip()
    except OSError:
        boot = b"unknown"
    return boot + b"\n" + os.uname().nodename.encode()


def _has_room(directory: Path, wanted_bytes: int) -> bool:
    try:
        return _free_bytes(directory) >= wanted_bytes and os.access(directory, os.W_OK)
    except OSError:
        return False


def _free_bytes(directory: Path) -> int:
    """Raises OSError where it cannot be told."""
    free = os.statvfs(directory)
    return free.f_bavail * free.f_frsize
