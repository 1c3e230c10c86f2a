# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of one job, waits for them with a limit, and reads what rank 0 has found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from hvd_tf.bench.errors import BenchError
from hvd_tf.launcher import mpirun, process
from hvd_tf.launcher.directories import private_directories

_PACKAGE = Path(__file__).resolve().parents[1]
_WORKER = Path(__file__).with_name("worker") / "rank_main.py"
# In every process of a job, so that all of them are found at its end.
_MARK = "HVD_BENCH_JOB"
# hvdrun itself takes up to KILL_AFTER_S.
_END_S = process.KILL_AFTER_S + 3.0
_SHOWN_LINES = 30


@dataclass(frozen=True)
class Launch:
    """How a library's ranks are started."""

    name: str
    """For messages: the module's."""
    python: str
    mpirun: Optional[str] = None
    """None: by hvdrun."""


def run(launch: Launch, plan: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Runs one job to its end and returns what rank 0 wrote: "facts" and "cases".

    Args:
      launch: what to start the ranks with.
      plan: what they are to do; see worker/rank_main.py. "ranks" says how many there are.
      limit_s: seconds after which the job is ended.

    Raises:
      BenchError: the job failed or ran into the limit; it has the last lines of its output.
    """
    with ExitStack() as stack:
        # Only its user can look into it.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hvd-bench.")))
        files = [directory / "plan.json", directory / "results.json"]
        files[0].write_text(json.dumps(plan))
        command = [launch.python, str(_WORKER), *map(str, files)]
        arguments, env = _prepare(launch, int(plan["ranks"]), command, stack)
        status = _run(arguments, env, directory / "log", limit_s)
        found: dict[str, Any] = json.loads(_read(files[1]) or "{}")
        if status == 0 and found.get("done"):
            return found
        cases = list(found.get("cases", ())) or ["the start"]
        if status is None:
            raise BenchError(
                f"the job of {launch.name} did not end within {limit_s:.0f} s; it had come to "
                f"{cases[-1]!r}: give it more time by --limit or fewer cases by --only and "
                "--max-bytes"
            )
        log = "\n".join(_read(directory / "log").splitlines()[-_SHOWN_LINES:])
        raise BenchError(
            f"the job of {launch.name} ended with status {status} after {cases[-1]!r}: see to "
            f"what its ranks said last:\n{log or '(nothing)'}"
        )


def search_path(launch: Launch) -> Optional[str]:
    """Where ranks find this package when it runs from a source tree; None for other packages."""
    mine = launch.python == sys.executable and launch.name.partition(".")[0] == _PACKAGE.name
    return str(_PACKAGE.parent) if mine else None


def _prepare(
    launch: Launch, ranks: int, command: Sequence[str], stack: ExitStack
) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the process to start."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if launch.mpirun is None:
        return [sys.executable, "-m", "hvd_tf.launch", "-np", str(ranks), *command], env
    found = mpirun.identify(launch.mpirun, env)
    if found is None:
        raise BenchError(
            f"{launch.mpirun} is of neither Open MPI nor MPICH: name another one by --mpirun"
        )
    if launch.python != sys.executable:
        # It is for this Python, and would put its packages before the other's.
        env.pop("PYTHONPATH", None)
        env["PATH"] = os.pathsep.join([str(Path(launch.python).parent), env.get("PATH", "")])
    directories = stack.enter_context(private_directories(ranks))
    arguments = mpirun.arguments(found, ranks, directories, command)
    return arguments, mpirun.environment(found, ranks, directories, env)


def _run(
    arguments: Sequence[str], env: Mapping[str, str], log: Path, limit_s: float
) -> Optional[int]:
    """The status of the process; None where the limit ended it. Nothing of it is left behind."""
    token = uuid.uuid4().hex
    with log.open("wb") as output:
        started = subprocess.Popen(
            arguments,
            env={**env, _MARK: token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return started.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(started, token)


def _end(started: subprocess.Popen[bytes], token: str) -> None:
    if started.poll() is None:
        # It removes its own files and ends its ranks.
        started.terminate()
        try:
            started.wait(_END_S)
        except subprocess.TimeoutExpired:
            started.kill()
    process.kill_marked(_MARK, token)
    started.wait()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
