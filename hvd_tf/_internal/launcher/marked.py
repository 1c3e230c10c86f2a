# SPDX-License-Identifier: Apache-2.0
"""The processes of a job, found by a variable of their environment, and what the kernel tells."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_SWEEP_LIMIT_S = 2.0
# The name of a process that ends by itself when its job has gone, and removes the job's files.
WATCHER = "hvdrun-watcher"
# The longest wait for a process that becomes another program.
_EXEC_LIMIT_S = 1.0


def mark(env: dict[str, str], variable: str, value: str) -> None:
    """Gives this environment that value. What it had stays as the mark of the job around it."""
    outer = outer_variable(variable)
    if variable in env:
        env[outer] = f"{env.get(outer, os.pathsep)}{env[variable]}{os.pathsep}"
    env[variable] = value


def outer_variable(variable: str) -> str:
    """Where the values are that `mark` has replaced."""
    return f"{variable}_OUTER"


def kill_marked(variable: str, value: str) -> None:
    """Ends at once every process that was started with this value of an environment variable.

    And those of jobs that such a process has started, but for their watchers. These have the time
    to remove what their launchers have left.
    """
    deadline = time.monotonic() + _SWEEP_LIMIT_S
    # On a busy machine a look at all processes may take longer than that. What it found is ended.
    while pids := pids_within(variable, value):
        is_late = time.monotonic() > deadline
        for pid in pids:
            if is_late or not _is_watcher(pid):
                send(pid, signal.SIGKILL)
        if is_late:
            return
        time.sleep(0.01)


def _is_watcher(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().strip() == WATCHER.encode()
    except OSError:
        return False


def has_marked(variable: str, value: str, names: Sequence[str]) -> bool:
    """Whether a process with this value has one of these environment variables too."""
    heads = tuple(os.fsencode(f"{name}=") for name in names)
    return any(
        item.startswith(heads) for pid in pids_of(variable, value) for item in environment(pid)
    )


def end_strays(variable: str, value: str, reader: int) -> list[str]:
    """Ends at once those that hold what the reader reads. Returns "name (pid 7)" of each."""
    ended, read = [], set(_open_files(reader))
    for pid in pids_of(variable, value):
        # A rank's terminal, where it has one, is mpirun's. Its other side has no such name.
        held = [name for name in _open_files(pid) if name in read or name.startswith("/dev/pts/")]
        if pid != reader and any(name.startswith(("pipe:", "/dev/pts/")) for name in held):
            with suppress(OSError):
                name = os.fsdecode(Path(f"/proc/{pid}/comm").read_bytes().strip())
                ended.append(f"{name} (pid {pid})")
            send(pid, signal.SIGKILL)
    return ended


def _open_files(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(file))
    return found


def runs(pid: int) -> bool:
    """Whether there is such a process, which has not ended."""
    try:
        return _facts(pid)[0] != b"Z"
    except OSError:
        return False


def parents_and_groups() -> dict[int, tuple[int, int]]:
    """Those of every process."""
    found = {}
    for pid in _pids():
        with suppress(OSError):
            _, parent, group, *_ = _facts(pid)
            found[pid] = int(parent), int(group)
    return found


def has_collected_children(pid: int) -> bool:
    """Whether children of it have ended and it has collected their status.

    Raises:
      OSError: there is no such process.
    """
    # Page faults of those children, of which the shortest program has some.
    return int(_facts(pid)[8]) > 0


def end_marked(variable: str, value: str, patience_s: float) -> None:
    """Waits for the end of all that `kill_marked` would end, then kills the rest."""
    deadline = time.monotonic() + patience_s
    while pids_within(variable, value) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_marked(variable, value)


def environment(pid: int) -> list[bytes]:
    """Its variables, as b"NAME=value". None where it has none, has ended or may not be read."""
    deadline = time.monotonic() + _EXEC_LIMIT_S
    try:
        while not (text := Path(f"/proc/{pid}/environ").read_bytes()):
            # A process that becomes another program shows none until that one's is in place.
            if not _may_have_environment(pid) or time.monotonic() > deadline:
                return []
    except OSError:
        return []
    return text.split(b"\0")


def pids_of(variable: str, value: str) -> list[int]:
    """Those that were started with this value of an environment variable."""
    # Parent and process group do not tell: mpirun gives each rank a group of its own, and what
    # a rank has started may have changed both. All inherit the variable.
    own = os.fsencode(f"{variable}={value}")
    return [pid for pid in _pids() if own in environment(pid)]


def pids_within(variable: str, value: str) -> list[int]:
    """The same with those of jobs that such processes have started."""
    own = os.fsencode(f"{variable}={value}")
    head = os.fsencode(f"{outer_variable(variable)}=")
    part = os.fsencode(f"{os.pathsep}{value}{os.pathsep}")

    def is_within(item: bytes) -> bool:
        return item == own or (item.startswith(head) and part in item)

    return [pid for pid in _pids() if any(map(is_within, environment(pid)))]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _may_have_environment(pid: int) -> bool:
    """Raises OSError where there is no such process."""
    facts = _facts(pid)
    size, code, begin, end = (int(facts[place]) for place in (20, 23, 47, 48))
    # The kernel's own processes and those that have ended have no memory at all. The address of
    # a new program's code is the last that the kernel sets, after its environment.
    return size > 0 and (code == 0 or begin < end)


def _facts(pid: int) -> list[bytes]:
    """What the kernel's file `stat` has behind the process's name, from its state on.

    The kernel cuts that name to 15 bytes, also within a letter.

    Raises:
      OSError: there is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def send(pid: int, number: int) -> None:
    """Sends it a signal, if it is there and may be told."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
