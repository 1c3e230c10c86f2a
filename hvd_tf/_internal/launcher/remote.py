# SPDX-License-Identifier: Apache-2.0
"""Hosts other than this one that a job has ranks on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_tf._internal.launcher.hosts import Host


@dataclass(frozen=True)
class Remote:
    """What a job needs that has ranks on other hosts."""

    hosts: tuple[Host, ...]
    """With as many slots as there are ranks."""
    variables: tuple[str, ...]
    """Names of those that ranks get that are not on this host; their values travel by MPI."""
    ssh_arguments: tuple[str, ...] = ()

    def host_of(self, rank: int) -> str:
        """The name of the host on which a rank is."""
        return self._names()[rank]

    def ranks_on(self, name: str) -> list[int]:
        """The ranks on the host of this name."""
        return [rank for rank, host in enumerate(self._names()) if host == name]

    def _names(self) -> list[str]:
        return [host.name for host in self.hosts for _ in range(host.slots)]


def ssh_check(names: Sequence[str], ssh_arguments: Sequence[str]) -> str:
    """What the user may do where ssh does not reach one of these hosts."""
    tried = shlex.join(["ssh", *ssh_arguments, names[0], "true"])
    others = ", and so for the other hosts" if len(names) > 1 else ""
    return f"see that '{tried}' works without anything typed (passphrases: ssh-agent){others}"
