# SPDX-License-Identifier: Apache-2.0
"""What Hydra needs to be told: MPICH's mpirun, and Intel's, which comes from it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from hvd_tf._internal.launcher.directories import Directories
from hvd_tf._internal.launcher.hosts import Host, slots_of
from hvd_tf._internal.launcher.remote import Remote

# Named, for under a batch system Hydra would otherwise take other hosts from there.
_HERE = ["-launcher", "fork", "-hosts", "localhost"]
# By it Intel's binds ranks to cores, or does not.
PINS = "I_MPI_PIN"
# For Intel's, in the job's directory: how many ranks each host has.
_HOSTS_FILE = "hosts"


def of_mpich(directories: Directories | None, remote: Remote | None) -> list[str]:
    """Options of MPICH's. `directories` is None where they are only to be shown."""
    if remote is None:
        options = _HERE
    else:
        hosts = slots_of(_as_others_see(remote.hosts))
        options = ["-launcher", "ssh", "-hosts", hosts, *_variables_of(remote)]
    return [*options, "-bind-to", "none", *_to_pipes(directories)]


def of_intel(directories: Directories | None, remote: Remote | None) -> list[str]:
    """Options of Intel's. `directories` is None where they are only to be shown."""
    if remote is None:
        options = _HERE
    else:
        # Its -hosts takes no slots.
        hosts = str(_hosts_file(directories))
        options = ["-launcher", "ssh", "-machinefile", hosts, *_variables_of(remote, PINS)]
    return [*options, *_to_pipes(directories)]


def variables_of_mpich(remote: Remote | None) -> dict[str, str]:
    """Variables for MPICH's."""
    if remote is None or not remote.ssh_arguments:
        return {}
    return {"HYDRA_LAUNCHER_EXTRA_ARGS": " ".join(remote.ssh_arguments)}


def variables_of_intel(directories: Directories, remote: Remote | None) -> dict[str, str]:
    """Variables for Intel's. Leaves a file with the hosts, if there are others."""
    if remote is None:
        return {}
    hosts = [f"{host.name}:{host.slots}\n" for host in _as_others_see(remote.hosts)]
    _hosts_file(directories).write_text("".join(hosts))
    if not remote.ssh_arguments:
        return {}
    return {"I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": " ".join(remote.ssh_arguments)}


def stream_path(directories: Directories, stream: str, rank: object) -> Path:
    """The named pipe of one rank's "stdout" or "stderr"."""
    return directories.job / f"{stream}.{rank}"


def _variables_of(remote: Remote, *more: str) -> list[str]:
    return ["-genvlist", ",".join(sorted({*remote.variables, *more}))]


def _to_pipes(directories: Directories | None) -> list[str]:
    """Hydra's own prefixes come in the middle of lines. So each rank has pipes."""
    if directories is None:
        return []
    names = (("-outfile-pattern", "stdout"), ("-errfile-pattern", "stderr"))
    return [
        word
        for option, stream in names
        for word in (option, str(stream_path(directories, stream, "%r")))
    ]


def _as_others_see(hosts: Sequence[Host]) -> list[Host]:
    """The other hosts call this one back by the name that it has here."""
    here = socket.gethostname()
    return [Host(here if host.is_local else host.name, host.slots) for host in hosts]


def _hosts_file(directories: Directories | None) -> Path:
    return (directories.job if directories else Path()) / _HOSTS_FILE
