# SPDX-License-Identifier: Apache-2.0
"""Which hosts the ranks go to: `-H a:2,b:4` and host files, checked before anything is started."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_tf._internal.launcher.errors import LaunchError

# As in DNS, /etc/hosts and ssh_config. Never a dash first: ssh would take it for an option.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LOCAL_NAMES = ("localhost", "127.0.0.1")
_ADDRESS = re.compile(r"[0-9.]+")
_LONGEST_SLOTS = 6  # digits


@dataclass(frozen=True)
class Host:
    """A host, and how many ranks it takes."""

    name: str
    slots: int

    @property
    def is_local(self) -> bool:
        """Whether the name is one of this machine's own. An address of it does not count."""
        own = socket.gethostname()
        return self.name in (*_LOCAL_NAMES, own, own.partition(".")[0])

    def address(self) -> str | None:
        """Its IPv4 address. None: the name does not resolve; ssh's settings may know it."""
        try:
            return str(socket.getaddrinfo(self.name, None, socket.AF_INET)[0][4][0])
        except (OSError, UnicodeError):
            return None

    def is_this_machine(self) -> bool:
        """Whether the name or the address is one of this machine's own."""
        address = None if self.is_local else self.address()
        if address is None:
            return self.is_local
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                return False
        return True


def slots_of(hosts: Sequence[Host]) -> str:
    """As `parse` takes it: "a:2,b:4"."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def begin_alike(hosts: Sequence[Host]) -> bool:
    """Whether Open MPI 5 takes two of them, or of this machine, for one: it cuts names at a dot.

    Addresses it leaves alone, unless this machine's own name is like one.
    """
    own = socket.gethostname()
    names = [own, *(host.name for host in hosts if not host.is_local)]
    if not _ADDRESS.fullmatch(own):
        names = [name for name in names if not _ADDRESS.fullmatch(name)]
    return len({name.partition(".")[0] for name in names}) < len(names)


def with_full_name(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """The same, this machine by its own name. Where names are not cut Open MPI knows it by that."""
    own = socket.gethostname()
    return tuple(Host(own, host.slots) if host.is_local else host for host in hosts)


def parse(text: str) -> list[Host]:
    """The hosts of "a:2,b:4". One without a number takes one rank.

    Raises:
      LaunchError: a name or a number of slots is none, or a host comes twice.
    """
    pairs = []
    for item in text.split(","):
        name, colon, slots = item.strip().partition(":")
        if ":" in slots:
            name, colon = item.strip(), ""  # an IPv6 address
        pairs.append((name, slots if colon else "1"))
    return _checked(pairs, f"-H {text}")


def read(path: Path) -> list[Host]:
    """The hosts of a file with one on each line: "a slots=2", "a:2" or "a"; # begins a comment.

    Raises:
      LaunchError: the file cannot be read, or what it says is wrong, as for `parse`.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise LaunchError(
            f"--hostfile {path}: cannot be read ({reason}): give a file with a line such as "
            "'node1 slots=4' for each host"
        ) from None
    pairs = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = re.fullmatch(r"([^\s:]+)(?:\s*:\s*(\S+)|\s+slots\s*=\s*(\S+))?", text)
        if not found:
            raise LaunchError(
                f"--hostfile {path}, line {number}: {text!r} is no host: write 'node1 slots=4'"
            )
        pairs.append((found[1], found[2] or found[3] or "1"))
    return _checked(pairs, f"--hostfile {path}")


def taken(hosts: Sequence[Host], ranks: int) -> list[Host]:
    """As many of the hosts' slots as there are ranks, the first hosts first.

    Raises:
      LaunchError: there are fewer.
    """
    slots = sum(host.slots for host in hosts)
    if slots < ranks:
        named = ", ".join(f"{host.name}:{host.slots}" for host in hosts)
        raise LaunchError(
            f"-np {ranks} is more than the {slots} slots of {named}: lower -np, or give the hosts "
            "more slots"
        )
    found = []
    for host in hosts:
        slots = min(host.slots, ranks)
        ranks -= slots
        if slots:
            found.append(Host(host.name, slots))
    return found


def _checked(pairs: Sequence[tuple[str, str]], where: str) -> list[Host]:
    found: dict[str, Host] = {}
    for name, slots in pairs:
        if not _NAME.fullmatch(name):
            raise LaunchError(
                f"{where}: {name!r} is no host name: letters, digits, '.', '-' and '_', as in "
                "node1:4; a user name or an IPv6 address belongs in ~/.ssh/config"
            )
        if not slots.isdecimal() or len(slots) > _LONGEST_SLOTS or int(slots) < 1:
            raise LaunchError(
                f"{where}: {slots!r} is no number of slots of {name}: write {name}:4 for 4 ranks"
            )
        if name in found:
            raise LaunchError(f"{where}: {name} comes twice: name each host once, with all slots")
        found[name] = Host(name, int(slots))
    if not found:
        raise LaunchError(f"{where}: there is no host in it: write a line such as 'node1 slots=4'")
    return list(found.values())
