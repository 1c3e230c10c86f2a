# SPDX-License-Identifier: Apache-2.0
"""hvdrun is killed: its watcher ends what it has started and removes its files."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import facts, fake_mpirun, left_of, run, start, stop_left

DIRECTORIES = ("HVD_JOB_DIR", "OMPI_MCA_btl_sm_backing_directory")
# Only what hangs takes so long.
LIMIT_S = 60.0
# The job's shared memory is where no other job's launcher looks for what is left.
OWN_SHARED_MEMORY = """
from pathlib import Path
from hvd_tf._internal.launcher import directories
directories._SHARED_MEMORY = Path({place!r})
"""
# An mpirun that hears has all the time that it needs.
PATIENT = "from hvd_tf._internal.launcher import watcher; watcher._GRACE_S = 1000\n"
# A launcher whose parent has been killed gets SIGTERM. This one and its children ignore it.
DEAF = """
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
for detach in (lambda: os.setpgid(0, 0), os.setsid):
    if os.fork() == 0: detach(); time.sleep(1000)
note(env=dict(os.environ)); print("ready", flush=True); time.sleep(1000)
"""
HEARS = """
def stop(number, frame):
    note(env=dict(os.environ), seen=number); sys.exit(1)
signal.signal(signal.SIGTERM, stop)
note(env=dict(os.environ)); print("ready", flush=True); time.sleep(1000)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


def started(job: Path, change: str = "") -> subprocess.Popen[bytes]:
    process = start(job, ["-np", "1", "true"], stderr=subprocess.STDOUT, change=change)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def directories(job: Path) -> list[Path]:
    return [Path(facts(job)["env"][name]) for name in DIRECTORIES]


def wait_until_nothing_is_left(job: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (left := left_of(job)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def watcher_of(launcher: int) -> int:
    """The launcher's child that is a fork of it."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    command = _command_line(launcher)
    (found,) = [int(pid) for pid in children if _command_line(int(pid)) == command]
    return found


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("body", [HEARS, DEAF], ids=["hears", "deaf"])
def test_nothing_is_left_of_the_job(job: Path, body: str) -> None:
    fake_mpirun(job, body)
    process = started(job, PATIENT if body == HEARS else "")
    places = directories(job)
    assert all(place.is_dir() for place in places)
    process.kill()
    process.communicate(timeout=LIMIT_S)  # the end of its output, which the watcher does not hold
    wait_until_nothing_is_left(job)
    assert [place for place in places if place.exists()] == []
    if body == HEARS:
        assert facts(job)["seen"] == signal.SIGTERM


def test_another_job_goes_on(job: Path) -> None:
    fake_mpirun(job, HEARS)
    live = started(job)
    places = directories(job)
    process = started(job)
    assert directories(job) != places
    process.kill()
    process.communicate(timeout=LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while len(left_of(job)) > 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    # Its launcher, watcher, mpirun and directory.
    assert len(left_of(job)) == 4 and all(place.is_dir() for place in places)
    live.terminate()
    assert live.wait(timeout=LIMIT_S) == 143
    assert left_of(job) == []
    live.communicate()


def test_where_the_watcher_is_killed_as_well_the_next_start_removes_the_files(job: Path) -> None:
    fake_mpirun(job, HEARS)
    (job / "shm").mkdir()
    shared_memory = OWN_SHARED_MEMORY.format(place=str(job / "shm"))
    process = started(job, shared_memory)
    places = directories(job)
    assert [place.parent for place in places] == [job / "tmp", job / "shm"]
    os.kill(watcher_of(process.pid), signal.SIGKILL)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    # mpirun has been told nevertheless.
    deadline = time.monotonic() + LIMIT_S
    while "seen" not in facts(job) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert facts(job)["seen"] == signal.SIGTERM
    assert all(place.is_dir() for place in places)
    fake_mpirun(job / "next", "pass")
    again = run(job, ["-np", "1", "true"], prefix=job / "next", change=shared_memory)
    assert again.returncode == 0
    assert [place for place in places if place.exists()] == []


def test_a_launcher_without_its_watcher_ends_as_always(job: Path) -> None:
    fake_mpirun(job, HEARS)
    process = started(job)
    os.kill(watcher_of(process.pid), signal.SIGKILL)
    process.terminate()
    assert process.wait(timeout=LIMIT_S) == 143
    assert left_of(job) == []
    process.communicate()


def test_the_watcher_is_deaf_to_a_terminal(job: Path) -> None:
    fake_mpirun(job, HEARS)
    process = started(job)
    watcher = watcher_of(process.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(watcher, number)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    wait_until_nothing_is_left(job)
    assert [place for place in directories(job) if place.exists()] == []


def test_commits_go_with_a_launcher_that_is_killed(job: Path) -> None:
    fake_mpirun(job, HEARS)
    process = start(job, ["-np", "1", "--restarts", "2", "true"], stderr=subprocess.STDOUT)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    commits = Path(facts(job)["env"]["HVD_ELASTIC_DIR"])
    assert commits.is_dir() and commits not in directories(job)
    process.kill()
    process.communicate(timeout=LIMIT_S)
    wait_until_nothing_is_left(job)
    assert not commits.exists()


def test_commits_stay_from_one_start_to_the_next(job: Path) -> None:
    body = """
path = os.path.join(os.environ["HVD_ELASTIC_DIR"], "count")
done = open(path).read() if os.path.exists(path) else ""
with open(path, "w") as file: file.write(done + "x")
note(env=dict(os.environ), done=done); sys.exit(len(done) < 2)
"""
    fake_mpirun(job, body)
    assert run(job, ["-np", "1", "--restarts", "3", "true"]).returncode == 0
    assert facts(job)["done"] == "xx" and left_of(job) == []
