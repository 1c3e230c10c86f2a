# SPDX-License-Identifier: Apache-2.0
"""What mpirun says of a host where it could not start the job's ranks, or which it has lost.

It ends the job then. But its words name a dozen reasons and no remedy. If the ssh or the daemon of
a running job was killed, Open MPI's returns 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set

from hvd_tf._internal.launcher.mpirun import RANK_MAIN
from hvd_tf._internal.launcher.output import Part, Split
from hvd_tf._internal.launcher.remote import Remote, ssh_check

_DAEMON_FAILED = re.compile(
    rb"^A daemon failed to report back.*?^ *Remote host: *(\S+)\n *Daemon exit status: *(\d+)\n",
    re.MULTILINE | re.DOTALL,
)
# PRRTE of Open MPI 5, ORTE of Open MPI 4.
_CONNECTION_LOST = re.compile(
    rb"^(?:PRTE|ORTE) has lost communication with a remote daemon\..*?"
    rb"^ *Remote daemon: \S+ on node (\S+)\n",
    re.MULTILINE | re.DOTALL,
)
# Hydra of MPICH, which does not say on which host.
_NO_PROXY = b": Launch proxy failed.\n"
# Intel's. The status is as wait() has it.
_NO_BOOTSTRAP = re.compile(
    rb"^\[mpiexec@\S+\] Error: Unable to run bstrap_proxy on (\S+) \(pid \d+, exit code (\d+)\)",
    re.MULTILINE,
)
# Each of these is shorter.
_LONGEST_WORDS_BYTES = 4096
# Python's, on a rank's stderr.
_NO_RANK_MAIN = f"can't open file '{RANK_MAIN}'".encode(errors="backslashreplace")
# ssh's own, and a shell's where there is no such program or it cannot be run.
_SSH_FAILED = 255
_NOT_RUN = (126, 127)
_SAME_PATHS = "Python, hvd_tf, MPI and the program have to be at the same paths as here"
_WHY_LOST = "that host or the network is down, or its ssh or MPI's daemon there has been killed"


class LostHosts:
    """Looks for it. Owner: the thread of the output, and when that has ended the main one."""

    def __init__(self, remote: Remote | None, heard_of: Callable[[], Set[int]]) -> None:
        """For one start of a job.

        Args:
          remote: None where all ranks are on this machine, and nothing can be lost.
          heard_of: the ranks on other hosts that have told of themselves so far.
        """
        self._remote, self._heard_of = remote, heard_of
        self._said = bytearray()
        self._words = ""
        self._ssh_failed_to = ""

    @property
    def words(self) -> str:
        """What the user may do, once a host is lost."""
        host = self._ssh_failed_to
        if host and self._remote and not self._heard_of().isdisjoint(self._remote.ranks_on(host)):
            return f"the connection to {host} was lost while its ranks ran: {_WHY_LOST}"
        return self._words

    def splitting(self, split: Split) -> Split:
        """The same, looking at the lines on their way."""

        def wrapped(lines: bytes) -> Sequence[Part]:
            parts = split(lines)
            for rank, text in parts:
                if rank is None:
                    self._see(text)
                else:
                    self._see_rank(rank, text)
            return parts

        return wrapped if self._remote else split

    def _see(self, text: bytes) -> None:
        if self._words:
            return
        self._said += text
        if found := _DAEMON_FAILED.search(self._said):
            self._words = self._no_daemon(found[1].decode(errors="replace"), int(found[2]))
        elif found := _CONNECTION_LOST.search(self._said):
            self._words = _lost(found[1].decode(errors="replace"))
        elif found := _NO_BOOTSTRAP.search(self._said):
            self._words = self._no_daemon(found[1].decode(errors="replace"), int(found[2]) >> 8)
        elif _NO_PROXY in self._said and self._remote:
            elsewhere = [host.name for host in self._remote.hosts if not host.is_local]
            check = ssh_check(elsewhere, self._remote.ssh_arguments)
            self._words = f"a host was not reached: {check}"
        del self._said[:-_LONGEST_WORDS_BYTES]

    def _see_rank(self, rank: int, text: bytes) -> None:
        if self._remote and not self._words and _NO_RANK_MAIN in text:
            where = f"{RANK_MAIN.parent} on {self._remote.host_of(rank)}"
            self._words = f"hvd_tf is not in {where}: {_SAME_PATHS}"

    def _no_daemon(self, host: str, status: int) -> str:
        if status == _SSH_FAILED and self._remote:
            self._ssh_failed_to = host
            check = ssh_check([host], self._remote.ssh_arguments)
            return f"ssh to {host} failed, or its connection was lost: {check}"
        if status in _NOT_RUN:
            return f"MPI cannot be started on {host}: {_SAME_PATHS}"
        return _lost(host)


def _lost(host: str) -> str:
    return f"the connection to {host} was lost, or MPI's daemon there has been killed"
