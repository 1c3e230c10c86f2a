# SPDX-License-Identifier: Apache-2.0
"""Runs hvdrun with an mpirun that a test has written, or with the real one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpi import PACKAGE

OPEN_MPI = "mpirun (Open MPI) 5.0.11"
MPICH = "HYDRA build details:\n    Version:    5.0.2"
INTEL_MPI = "Intel(R) MPI Library for Linux* OS, Version 2021.17 Build 20251215 (id: 2ac2f63)"

# hvdrun without `hvd_tf/__init__.py`: these tests need neither TensorFlow nor a built library.
# Arguments: where mpirun is looked for first (sys.prefix), the MPI of the build, then hvdrun's.
_PREPARE = f"""
import sys, types
package = types.ModuleType("hvd_tf")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["hvd_tf"] = package
sys.path.append({str(PACKAGE.parent)!r})  # behind what a test puts into PYTHONPATH
from hvd_tf._internal.launcher import mpirun
from hvd_tf import launch
sys.prefix, built = sys.argv[1:3]
mpirun._built_with = lambda: built
"""
_MAIN = "sys.exit(launch.main(sys.argv[3:]))\n"

# A `change`: the limit of --start-timeout begins when this is so, however late mpirun is.
LIMIT_BEGINS = """
import os, time
from hvd_tf._internal.launcher.starts import Starts
def check(self, check=Starts.check):
    while not ({condition}): time.sleep(0.01)
    return check(self)
Starts.check = check
"""

# hvdrun that never ends an mpirun whose job is over. What does not end by itself hangs then, and
# the test's limit finds it, however fast the machine is.
_WAITING = """
import math, sys
from hvd_tf._internal.launcher import ends
from hvd_tf import launch
ends.LIMIT_S = math.inf
sys.exit(launch.main())
"""

_FAKE = """#!{python}
import json, os, signal, subprocess, sys, time
if sys.argv[1:] == ["--version"]:
    print({version!r})
    raise SystemExit
me = {directory!r}
command = sys.argv[sys.argv.index("-np") + 2:]
def run_ranks(ranks):
    # As mpirun does it: one after another will do.
    env = lambda rank: {{**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)}}
    return [subprocess.run(command, env=env(rank)).returncode for rank in range(ranks)]
def mode(path):
    return oct(os.stat(path).st_mode & 0o7777)
def note(**facts):
    with open(os.path.join(me, "facts.new"), "w") as file:
        json.dump(facts, file)
    os.rename(os.path.join(me, "facts.new"), os.path.join(me, "facts"))
{body}
"""


def fake_mpirun(directory: Path, body: str, version: str = OPEN_MPI) -> Path:
    """Writes bin/mpirun below the directory: a Python program that may call note(**facts)."""
    path = directory / "bin" / "mpirun"
    path.parent.mkdir(parents=True)
    text = _FAKE.format(python=sys.executable, version=version, directory=str(directory), body=body)
    path.write_text(text)
    path.chmod(0o755)
    return path


def facts(directory: Path) -> dict[str, Any]:
    """What the fake noted."""
    found: dict[str, Any] = json.loads((directory / "facts").read_text())
    return found


def launcher(prefix: Path | str = sys.prefix, built: str = "", change: str = "") -> list[str]:
    """The command that is hvdrun, less its own arguments. `change` is code that it runs first."""
    return [sys.executable, "-c", _PREPARE + change + _MAIN, str(prefix), built]


def waiting_hvdrun(*options: str, change: str = "") -> list[str]:
    """The real hvdrun, which leaves it to mpirun to end when the job is over."""
    return [sys.executable, "-c", change + _WAITING, *options]


def start(
    directory: Path,
    arguments: Sequence[str],
    env: Mapping[str, str | None] | None = None,
    built: str = "",
    prefix: Path | None = None,
    change: str = "",
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts hvdrun with the prefix's mpirun, and `tmp` in the directory as TMPDIR.

    prefix: the directory itself by default.
    change: code that hvdrun runs first.
    """
    temporary = directory / "tmp"
    temporary.mkdir(exist_ok=True)
    merged = {**os.environ, "TMPDIR": str(temporary), "FAKE_MARK": str(directory), **(env or {})}
    settings = {name: value for name, value in merged.items() if value is not None}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(
        [*launcher(prefix or directory, built, change), *arguments], env=settings, **options
    )


def run(
    directory: Path,
    arguments: Sequence[str],
    env: Mapping[str, str | None] | None = None,
    built: str = "",
    prefix: Path | None = None,
    change: str = "",
) -> subprocess.CompletedProcess[str]:
    """start(), and its end."""
    with start(directory, arguments, env, built, prefix, change) as process:
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


def left_of(directory: Path) -> list[str]:
    """Processes and temporary files that outlived hvdrun."""
    mark = f"FAKE_MARK={directory}".encode()
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    left = [f"process {pid}" for pid in pids if mark in _environment(pid)]
    return left + [str(path) for path in (directory / "tmp").iterdir()]


def stop_left(directory: Path) -> None:
    """Ends what a failed test may have left."""
    for line in left_of(directory):
        if line.startswith("process "):
            with contextlib.suppress(ProcessLookupError):  # the end of one may end the next
                os.kill(int(line.split()[1]), signal.SIGKILL)


def wait_until_gone(pids: Sequence[int]) -> None:
    """Waits until all of these processes have ended."""
    deadline = time.monotonic() + 60
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _environment(pid: str) -> list[bytes]:
    try:
        return Path("/proc", pid, "environ").read_bytes().split(b"\0")
    except OSError:
        return []
