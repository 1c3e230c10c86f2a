# SPDX-License-Identifier: Apache-2.0
"""Network interfaces that each host has for itself: bridges of its containers and virtual machines.

Open MPI takes each interface that is up for a way to the other hosts. Docker gives its bridge the
same address on every host, so messages to another host end on this one.
"""

from __future__ import annotations

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hvd_tf._internal.launcher.hosts import Host
from hvd_tf._internal.launcher.mpirun import OPEN_MPI, Mpirun

# What Open MPI excludes by itself: the option replaces it.
_DEFAULT = ("127.0.0.1/8", "sppp")
# A host that has none of that name takes no notice.
_BRIDGES = ("docker0", "virbr0", "lxdbr0", "podman0", "cni-podman0")
# Of Docker's networks that a user has made.
_DOCKER_NETWORK = re.compile(r"br-[0-9a-f]{12}")
# Open MPI refuses to start with both an include and an exclude.
_CHOICE = re.compile("btl_tcp_if_(in|ex)clude")
_FILE_CHOICE = re.compile(r"^\s*btl_tcp_if_(in|ex)clude\s*=", re.MULTILINE)
# Options and a variable that name files of parameters.
_FILE_OPTIONS = {"tune", "am"}
_FILES_VARIABLE = "OMPI_MCA_mca_base_param_files"
# See netdevice(7).
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B


def exclusion(
    launcher: Mpirun, hosts: Sequence[Host], environ: Mapping[str, str], more: Iterable[str]
) -> list[str]:
    """Options that keep Open MPI off these bridges, in a job over several hosts.

    Args:
      launcher: whose mpirun it is.
      hosts: of the job. A bridge that one of them is reached through is left in.
      environ: for mpirun.
      more: further options of mpirun. Where these, the environment or Open MPI's files of
        parameters choose interfaces, there is nothing to add.
    """
    if launcher.family != OPEN_MPI or len(hosts) < 2 or _is_chosen(launcher, environ, more):
        return []
    own = [name for _, name in socket.if_nameindex() if _DOCKER_NETWORK.fullmatch(name)]
    subnets = {name: _subnet(name) for name in (*_BRIDGES, *own)}
    used = _used(hosts, {name: subnet for name, subnet in subnets.items() if subnet})
    names = [name for name in subnets if name not in used]
    return ["--mca", "btl_tcp_if_exclude", ",".join([*_DEFAULT, *names])]


def _is_chosen(launcher: Mpirun, environ: Mapping[str, str], more: Iterable[str]) -> bool:
    words = list(more)
    if any(_CHOICE.search(word) for word in [*words, *environ]) or _FILES_VARIABLE in environ:
        return True
    if any(word.startswith("-") and word.lstrip("-") in _FILE_OPTIONS for word in words):
        return True
    places = [Path(launcher.path).resolve().parents[1] / "etc", Path("/etc/openmpi")]
    files = [
        place / f"openmpi-mca-params{end}.conf" for place in places for end in ("", "-override")
    ]
    if home := environ.get("HOME"):
        files.append(Path(home, ".openmpi", "mca-params.conf"))
    return any(_FILE_CHOICE.search(_text(file)) for file in files)


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _used(hosts: Sequence[Host], subnets: Mapping[str, ipaddress.IPv4Network]) -> set[str]:
    if not subnets:
        return set()  # nothing to ask a name server for
    found = [host.address() for host in hosts if not host.is_local]
    addresses = [ipaddress.IPv4Address(address) for address in found if address]
    return {name for name, subnet in subnets.items() if any(a in subnet for a in addresses)}


def _subnet(name: str) -> ipaddress.IPv4Network | None:
    """None: there is no such interface here, or it has no address."""
    request = struct.pack("256s", name.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            parts = [
                socket.inet_ntoa(fcntl.ioctl(any_socket, number, request)[20:24])
                for number in (_SIOCGIFADDR, _SIOCGIFNETMASK)
            ]
        except OSError:
            return None
    return ipaddress.IPv4Network("/".join(parts), strict=False)
