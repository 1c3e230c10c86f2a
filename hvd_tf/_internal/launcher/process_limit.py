# SPDX-License-Identifier: Apache-2.0
"""How many processes this machine may have, which has to be enough for its ranks."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

from hvd_tf._internal.launcher.errors import LaunchError
from hvd_tf._internal.launcher.hosts import Host
from hvd_tf._internal.launcher.saying import say

KERNEL_LIMITS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")
# What mpirun starts as a rank, and the rank's program.
_A_RANK = 2
# More than this are hardly meant: they take long to start, and much memory.
_RANKS_A_CORE = 32


def check(ranks: int, hosts: Sequence[Host]) -> None:
    """Says what takes so long where the ranks of this machine are very many.

    Args:
      ranks: of all hosts.
      hosts: empty: all ranks are on this machine.

    Raises:
      LaunchError: they are more than it can have.
    """
    here = sum(host.slots for host in hosts if host.is_local) if hosts else ranks
    allowed, what = min(_limits(), default=(here * _A_RANK, ""))
    if here * _A_RANK > allowed:
        raise LaunchError(
            f"-np {ranks} needs {here * _A_RANK} processes on this machine, and {what} allows "
            f"{allowed}: lower -np, or name more hosts (-H)"
        )
    cores = len(os.sched_getaffinity(0))
    if here > _RANKS_A_CORE * cores:
        say(
            f"starting {here} ranks on the {cores} cores of this machine, which takes long and "
            "much memory: if they are not meant, end this by Ctrl-C and lower -np"
        )


def _limits() -> list[tuple[int, str]]:
    found = []
    for path in KERNEL_LIMITS:
        try:
            found.append((int(Path(path).read_text()), path))
        except (OSError, ValueError):
            continue  # a container may hide it
    of_user = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and of_user != resource.RLIM_INFINITY:  # root may exceed it
        found.append((of_user, "'ulimit -u'"))
    return found
