# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces, each with its own hostname, joined by a cable.

with TwoHosts() as hosts:
    with Job([...], n, launcher=hosts.mpirun(ranks_per_host=2)) as job:
        ...
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mpi import is_open_mpi, mpirun

INTERFACE = "cable"
# So large that what the network adds to each packet does not show beside the data.
MTU_BYTES = 65000
# Started by mpirun with a host and a command line, as ssh would be.
_AGENT = """#!{python}
import os, sys
namespaces = {namespaces!r}
arguments = sys.argv[1:]
while arguments and arguments[0] not in namespaces:
    arguments.pop(0)
host, *command = arguments
inside = 'hostname "$0" && exec sh -c "$1"'
start = ["unshare", "--uts", "sh", "-c", inside, host, " ".join(command)]
if {as_ssh!r}:
    kept = {{name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}}
    os.environ.clear()
    os.environ.update(kept)
    os.chdir("/")
os.execvp("ip", ["ip", "netns", "exec", namespaces[host], *start])
"""


def why_not() -> str:
    """Why this machine cannot have them; "" where it can."""
    missing = [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    try:
        with TwoHosts():
            return ""
    except subprocess.CalledProcessError as error:
        return f"needs network namespaces: {error.stderr.strip()}"


class TwoHosts:
    """Made on entering, removed on leaving, whatever happened between."""

    def __init__(self, as_ssh: bool = False) -> None:
        """as_ssh: what is started on a host does not inherit the environment and the directory."""
        self._as_ssh = as_ssh
        self._token = secrets.token_hex(3)
        self._undo = contextlib.ExitStack()
        self.addresses = ("10.213.7.1", "10.213.7.2")
        self._namespaces = {a: f"hvd{self._token}-{i}" for i, a in enumerate(self.addresses)}

    def __enter__(self) -> TwoHosts:
        with contextlib.ExitStack() as undo:
            self._make(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _make(self, undo: contextlib.ExitStack) -> None:
        directory = undo.enter_context(tempfile.TemporaryDirectory(prefix="hosts"))
        self._agent = Path(directory) / "agent"
        facts = {"namespaces": self._namespaces, "as_ssh": self._as_ssh}
        self._agent.write_text(_AGENT.format(python=sys.executable, **facts))
        self._agent.chmod(0o700)
        for namespace in self._namespaces.values():
            _ip("netns", "add", namespace)
            undo.callback(_ip, "netns", "del", namespace)
        one, other = self._namespaces.values()
        # Made inside the namespaces, their names meet no others. They go with the namespaces.
        peer = ("peer", "name", INTERFACE, "netns", other)
        _ip("link", "add", INTERFACE, "netns", one, "type", "veth", *peer)
        for address, namespace in self._namespaces.items():
            _ip("-n", namespace, "address", "add", f"{address}/24", "dev", INTERFACE)
            _ip("-n", namespace, "link", "set", INTERFACE, "mtu", str(MTU_BYTES), "up")
            _ip("-n", namespace, "link", "set", "lo", "up")

    def mpirun(self, ranks_per_host: int) -> list[str]:
        """A launcher on the first host that starts so many ranks on each of them."""
        hosts = ",".join(f"{address}:{ranks_per_host}" for address in self.addresses)
        count = ["--host", hosts, "-n", str(ranks_per_host * len(self.addresses))]
        return [*self.first(), *mpirun(), *self.mpi_arguments(), *count]

    def first(self) -> list[str]:
        """What a command begins with that is to run on the first host."""
        return self.on(self.addresses[0])

    def on(self, name: str) -> list[str]:
        """The same, of the host with this address. What it mounts is seen by itself alone."""
        inside = 'hostname "$0" && exec "$@"'
        where = ["ip", "netns", "exec", self._namespaces[name], "unshare", "--uts"]
        return [*where, "sh", "-c", inside, name]

    def mpi_arguments(self) -> list[str]:
        """How mpirun starts something on a host, and which network it takes."""
        if not is_open_mpi():
            return ["-launcher-exec", str(self._agent), "-iface", INTERFACE]
        network = ["--prtemca", "prte_if_include", INTERFACE]
        network += ["--mca", "btl_tcp_if_include", INTERFACE]
        return ["--prtemca", "plm_ssh_agent", str(self._agent), *network]


def sent_bytes() -> int:
    """What this host has put on the cable since it was made."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counts.split()[8])
    raise LookupError(f"there is no {INTERFACE} here")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
