# SPDX-License-Identifier: Apache-2.0
"""A job: ranks that measure in turns. Starts them, waits with a limit, and ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from hvd_tf._internal.launcher import marked, mpirun, process
from hvd_tf._internal.launcher.directories import private_directories
from hvd_tf.bench.errors import BenchError
from hvd_tf.bench.guardian import Guardian

_PACKAGE = Path(__file__).resolve().parents[1]
_WORKER = Path(__file__).with_name("worker") / "rank_main.py"
# A variable in every process of a job, so that all of them are found at its end.
_MARK = "HVD_BENCH_JOB"
# hvdrun itself needs up to KILL_AFTER_S for the ranks, and as long for mpirun.
_END_S = 2 * process.KILL_AFTER_S + 3.0
_SHOWN_LINES = 30
_POLL_S = 0.01


@dataclass(frozen=True)
class Launch:
    """How a library's ranks are started."""

    name: str
    """The module's name, for messages."""
    python: str
    mpirun: Optional[str] = None
    """None: by hvdrun."""


class Job:
    """Ranks that carry out a plan turn by turn. They are stopped in between.

    Leaving the `with` block ends what still runs. All methods raise BenchError if the ranks have
    failed, or do not end within the limit.
    """

    def __init__(self, launch: Launch, plan: Mapping[str, Any], limit_s: float) -> None:
        """Starts the ranks.

        Args:
          launch: how to start them.
          plan: what they do; see session.py. "ranks" is their number.
          limit_s: the most seconds for the start, for a turn and for the end.
        """
        self._name, self._limit_s = launch.name, limit_s
        self._stack = ExitStack()
        self._token = uuid.uuid4().hex
        self._turns = 0
        try:
            # Only its user can read it.
            directory = tempfile.TemporaryDirectory(prefix="hvd-bench.")
            self._directory = Path(self._stack.enter_context(directory))
            (self._directory / "plan.json").write_text(json.dumps(plan))
            guardian = Guardian(_MARK, self._token, self._directory)
            self._stack.callback(guardian.close)
            command = [launch.python, str(_WORKER), str(self._directory)]
            arguments, env = _prepare(launch, int(plan["ranks"]), command, self._stack)
            log = self._stack.enter_context((self._directory / "log").open("wb"))
            self._process = subprocess.Popen(
                arguments,
                env={**env, _MARK: self._token},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stack:
            if self._process.poll() is None:
                # The launcher removes its own files, and ends its ranks in order.
                self._signal(signal.SIGCONT)
                self._process.terminate()
                try:
                    self._process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
            marked.kill_marked(_MARK, self._token)
            # With a limit: a signal that raises within `poll` leaves its lock held for ever.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def wait_until_ready(self) -> None:
        """Waits for the ranks to start."""
        self._wait(self._turn_file(0).exists, "its start")
        self._signal(signal.SIGSTOP)

    def take_turn(self, what: str) -> None:
        """Lets the ranks measure once. They do not run before and after."""
        self._turns += 1
        new = self._directory / "turns.new"
        new.write_text(str(self._turns))
        os.replace(new, self._directory / "turns")
        self._signal(signal.SIGCONT)
        self._wait(self._turn_file(self._turns).exists, what)
        # Idle ranks poll their wires. That would disturb what another job measures.
        self._signal(signal.SIGSTOP)

    def finish(self) -> dict[str, Any]:
        """Waits for the end after the last turn.

        Returns:
          The ranks' "facts", and "cases": for each name a list with the result of each turn.
        """
        self._signal(signal.SIGCONT)
        self._wait(lambda: self._process.poll() == 0, "its end")
        facts, *turns = (json.loads(self._turn_file(n).read_text()) for n in range(self._turns + 1))
        cases: dict[str, list[Any]] = {}
        for turn in turns:
            for name, entry in turn.items():
                cases.setdefault(name, []).append(entry)
        return {"facts": facts, "cases": cases}

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + self._limit_s
        while not condition():
            status = self._process.poll()
            if status is not None and not condition():
                said = "\n".join(_read(self._directory / "log").splitlines()[-_SHOWN_LINES:])
                raise BenchError(
                    f"the job of {self._name} ended with status {status} in {what}: see to what "
                    f"its ranks said last:\n{said or '(nothing)'}"
                )
            if time.monotonic() > deadline_s:
                raise BenchError(
                    f"the job of {self._name} took more than {self._limit_s:g} s for {what}: give "
                    "it more by --limit, or leave that out by --only or --max-bytes"
                )
            time.sleep(_POLL_S)

    def _turn_file(self, number: int) -> Path:
        return self._directory / f"{number}.json"

    def _signal(self, number: int) -> None:
        for path in self._directory.glob("*.pid"):
            try:
                os.kill(int(path.stem), number)
            except ProcessLookupError:
                continue


def search_path(launch: Launch) -> Optional[str]:
    """Where ranks find this package if it runs from a source tree. None for other packages."""
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
    if isinstance(found, str):
        raise BenchError(f"{launch.mpirun}, {found}: name another one by --mpirun")
    if launch.python != sys.executable:
        # The variable is for this Python. It would put its packages before those of the other
        # Python.
        env.pop("PYTHONPATH", None)
        env["PATH"] = os.pathsep.join([str(Path(launch.python).parent), env.get("PATH", "")])
    directories = stack.enter_context(private_directories(ranks))
    arguments = mpirun.arguments(found, ranks, directories, command)
    return arguments, mpirun.environment(found, ranks, directories, env)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
