# SPDX-License-Identifier: Apache-2.0
"""Faults of a job under hvdrun, with all cores busy: it ends, and nothing of it is left.

HVD_TEST_FAULT_REPEATS=20 does each so often, instead of once, and more combinations.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cases import ALL, in_full
from launching import LIMIT_BEGINS, waiting_hvdrun
from mpi import Job

PROGRAM = Path(__file__).with_name("launch_program.py")
REPEATS = range(int(os.environ.get("HVD_TEST_FAULT_REPEATS", "1")))
RANKS = 2
# Where it is the launcher that is told, or dies, plain MPI programs are started within a second.
PLAIN = "" if ALL else "plain"


def spin() -> None:
    while os.getppid() != 1:
        for _ in range(1_000_000):
            pass


@pytest.fixture(scope="module", autouse=True)
def busy_cores() -> Iterator[None]:
    spinners = [
        multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
        for _ in os.sched_getaffinity(0)
    ]
    for spinner in spinners:
        spinner.start()
    yield
    for spinner in spinners:
        spinner.kill()
        spinner.join()


def hvdrun(*options: str, change: str = "") -> list[str]:
    # Where MPI's segments are is to be the launcher's business here, not the test's.
    parts = [f"--unset=OMPI_MCA_{part}_sm_backing_directory" for part in ("btl", "osc")]
    mine = ["--verbose", "-np", str(RANKS)]
    return ["env", *parts, *waiting_hvdrun(*mine, *options, change=change)]


def started(*options: str, what: str = "", change: str = "") -> Job:
    command = [sys.executable, str(PROGRAM), what]
    return Job(command, RANKS, launcher=hvdrun(*options, change=change))


def wait_for_ranks(job: Job, restart: int = 0) -> None:
    for rank in range(RANKS):
        job.wait_for(f"[{rank}] started {restart}")


def at_some_moment(repeat: int) -> None:
    time.sleep(random.Random(repeat).uniform(0, 0.5))


def ended(job: Job, status: int) -> str:
    """Waits for the end after a fault just now. Returns what was written."""
    result = job.wait(60)
    assert not result.timed_out and result.returncode == status, result.text
    assert [*result.leftovers, *segments(job), *files(job)] == [], result.text
    return result.launcher_output


def files(job: Job) -> list[Path]:
    """The launcher's own temporary files."""
    return list((job.directory / "tmp").glob("hvdrun.*"))


def segments(job: Job) -> list[Path]:
    """What is left of the shared memory that the launcher says it gives its ranks."""
    places = re.findall(r"shared memory in (\S+)$", job.launcher_output(), re.MULTILINE)
    assert places, job.launcher_output()
    return [path for path in map(Path, places) if path.exists()]


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize(
    ("number", "frozen", "what"),
    [
        # SIGINT without more: test_a_killed_rank_and_a_restart.
        pytest.param(signal.SIGINT, False, "", marks=in_full),
        (signal.SIGINT, True, PLAIN),
        (signal.SIGTERM, False, ""),
        pytest.param(signal.SIGTERM, True, "", marks=in_full),
    ],
)
def test_a_signal_to_the_launcher(number: int, frozen: bool, what: str, repeat: int) -> None:
    with started(what=what) as job:
        wait_for_ranks(job)
        if frozen:
            os.kill(job.pid(repeat % RANKS), signal.SIGSTOP)
        at_some_moment(repeat)
        job.process.send_signal(number)
        text = ended(job, 128 + number)
    assert text.splitlines()[-1] == f"hvdrun: stopped by {signal.Signals(number).name}"


def test_a_rank_has_time_to_save() -> None:
    change = "from hvd_tf._internal.launcher import process; process.KILL_AFTER_S = 1000\n"
    with started(what="saves", change=change) as job:
        wait_for_ranks(job)
        job.process.send_signal(signal.SIGTERM)
        text = ended(job, 128 + signal.SIGTERM)
    assert "[0] saved" in text.splitlines(), text


@in_full  # test_a_killed_rank_and_a_restart, and test_kill.py
@pytest.mark.parametrize("repeat", REPEATS)
def test_a_killed_rank(repeat: int) -> None:
    with started() as job:
        wait_for_ranks(job)
        at_some_moment(repeat)
        os.kill(job.pid(repeat % RANKS), signal.SIGKILL)
        ended(job, 128 + signal.SIGKILL)


def test_a_killed_rank_that_has_started_a_job_of_its_own() -> None:
    with started(what="outer") as job:
        result = job.wait(60)
    assert "[1] [" in result.text, result.text  # it was running
    assert result.returncode == 128 + signal.SIGKILL and result.leftovers == [], result.text


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize(
    "frozen", [pytest.param(False, marks=in_full), True], ids=["", "a frozen rank"]
)
def test_a_killed_launcher(frozen: bool, repeat: int) -> None:
    with started() as job:
        wait_for_ranks(job)
        if frozen:
            os.kill(job.pid(repeat % RANKS), signal.SIGSTOP)
        at_some_moment(repeat)
        job.process.kill()
        job.process.wait()
        deadline = time.monotonic() + 60
        while (job.processes() or segments(job) or files(job)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert job.processes() == []
        ended(job, -signal.SIGKILL)


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_killed_mpirun(repeat: int) -> None:
    with started(what=PLAIN) as job:
        wait_for_ranks(job)
        at_some_moment(repeat)
        os.kill(mpirun_of(job), signal.SIGKILL)
        ended(job, 128 + signal.SIGKILL)


def test_a_frozen_mpirun_and_its_ranks() -> None:
    with started(what=PLAIN) as job:
        wait_for_ranks(job)
        for pid in (mpirun_of(job), job.pid(0), job.pid(1)):
            os.kill(pid, signal.SIGSTOP)
        job.process.send_signal(signal.SIGINT)
        ended(job, 128 + signal.SIGINT)


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_killed_rank_and_a_restart(repeat: int) -> None:
    with started("--restarts", "2") as job:
        wait_for_ranks(job)
        os.kill(job.pid(repeat % RANKS), signal.SIGKILL)
        job.wait_for(f"status {128 + signal.SIGKILL}; starting it again (restart 1 of 2)")
        wait_for_ranks(job, restart=1)
        at_some_moment(repeat)
        job.process.send_signal(signal.SIGINT)
        ended(job, 128 + signal.SIGINT)


def test_a_rank_that_does_not_reach_init() -> None:
    # The other one has come so far then, however busy the machine is.
    known = "[rank for rank, state in self._notices.states().items() if state.started]"
    change = LIMIT_BEGINS.format(condition=f"{known} == [0]")
    with started("--start-timeout", "1", what="late", change=change) as job:
        job.wait_for("[1] asleep")
        text = ended(job, 124)
    words = "rank 1 of 2 has not called hvd.init() 1 s after the start"
    assert words in text.splitlines()[-1]


def mpirun_of(job: Job) -> int:
    """The launcher's child that is mpirun."""
    pid = job.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = {int(child): Path("/proc", child, "cmdline").read_bytes() for child in children}
    (found,) = [child for child, line in lines.items() if b"rank_main.py" in line]
    return found
