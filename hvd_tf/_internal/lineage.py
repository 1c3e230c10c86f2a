# SPDX-License-Identifier: Apache-2.0
"""Tells a rank from a process that the rank has started, and that takes itself for the rank.

Such a process inherits what the launcher has told the rank. MPI would wait in it for ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hvd_tf._internal import launched

# In what a rank starts: the rank's process. hvdrun does not pass it on to jobs of its own.
VARIABLE = "HVD_RANK_PROCESS"
# What tells one rank from another, and from one of another job: of PMIx and MPICH's launcher.
_OF_RANK = ("PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_PORT")
# A descriptor by which MPICH's launcher talks with one rank.
_CONNECTION = "PMI_FD"


def claim() -> None:
    """This process is the rank. What it starts can know that by now."""
    if launched.size() > 1:
        os.environ[VARIABLE] = str(os.getpid())


def check() -> None:
    """To be called before MPI begins.

    Raises:
      RuntimeError: a rank of the job has started this process.
    """
    if launched.size() == 1:
        return  # it works there
    text = os.environ.get(VARIABLE, "")
    pid = int(text) if text.isdecimal() else 0
    if pid in _ancestors() and _is_same_rank(pid):
        raise RuntimeError(
            f"hvd.init(): this process was started by rank {launched.rank()} (pid {pid}), which "
            "has called hvd.init(), so it is no rank of the job: do not call hvd.init() in it "
            "(where multiprocessing imports the program again, keep the call below if __name__ == "
            "'__main__'), or remove OMPI_*, PMIX_*, PMI_* and MPI_LOCAL* from its environment, so "
            "that it is a job of its own"
        )


def _ancestors() -> Iterator[int]:
    """From the parent on."""
    pid = os.getppid()
    with suppress(OSError, ValueError):  # it has ended meanwhile
        while pid > 1:
            yield pid
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def _is_same_rank(pid: int) -> bool:
    """Whether a launcher has told that process and this one the same. If not, this is a rank."""
    try:
        lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    told = dict(line.split(b"=", 1) for line in lines if b"=" in line)
    if not any(os.fsencode(name) in told for name in _OF_RANK):
        return True  # a title that the rank has given itself is where they were
    for name in _OF_RANK:
        if told.get(os.fsencode(name)) != os.environb.get(os.fsencode(name)):
            return False
    mine = _connection("self")
    return not mine or mine == _connection(str(pid))


def _connection(process: str) -> str:
    """What PMI_FD is there. Empty: it is closed, as in what subprocess starts."""
    try:
        return os.readlink(f"/proc/{process}/fd/{os.environ.get(_CONNECTION, '')}")
    except OSError:
        return ""
