# SPDX-License-Identifier: Apache-2.0
"""The test harness itself: that it finds what ranks do wrong, and cleans up behind them."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import fake_gpu
import mpi
import pytest
import rank_files
from job_directories import PREFIX, JobDirectory, remove_abandoned
from launching import wait_until_gone
from mpi import DIRECTORY_VARIABLE, ROOT, Job, run_ranks, threads_of

RANK = 'int(__import__("os").environ.get("OMPI_COMM_WORLD_RANK", 0))'


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(f"import os, sys, time\nrank = {RANK}\n{text}\n")
    return path


# For a rank 1 whose status ends the job: rank 0 says first that it has come so far.
RAISE_FLAG = f'open(os.environ["{DIRECTORY_VARIABLE}"] + "/flag", "w").close()'
AWAIT_FLAG = f'''
while not os.path.exists(os.environ["{DIRECTORY_VARIABLE}"] + "/flag"):
    time.sleep(0.01)
'''


def test_output_and_status_of_each_rank(tmp_path: Path) -> None:
    text = f"""
print("I am", rank)
if rank == 0:
    {RAISE_FLAG}
    sys.exit(0)
{AWAIT_FLAG}
sys.exit(3)
"""
    result = run_ranks(script(tmp_path, text), 2, 30)
    assert (result.returncode, result.timed_out, result.leftovers) == (3, False, [])
    assert result.outputs == ["I am 0\n", "I am 1\n"]


def test_hosts(tmp_path: Path) -> None:
    path = script(tmp_path, 'print(os.environ["HVD_HOST_ID"])')
    result = run_ranks(path, 4, 30, hosts="2x2")
    assert result.outputs == ["host0\n", "host0\n", "host1\n", "host1\n"]


def test_ranks_know_which_gpu_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lost it once, and what was to run by NCCL ran without, and passed."""
    asked = {"HVD_TEST_GPU": "real", "HVD_TEST_NCCL": "1"}
    monkeypatch.setattr(fake_gpu, "OF_REAL", asked)
    monkeypatch.setenv("HVD_TEST_NCCL", "of the tests' own")
    path = script(tmp_path, f"print({{k: v for k, v in os.environ.items() if k in {[*asked]}}})")
    assert run_ranks(path, 1, 30).outputs == [f"{asked}\n"]


def test_own_launcher(tmp_path: Path) -> None:
    path = script(tmp_path, 'print(os.environ["X"], sys.argv[1:])')
    result = run_ranks([sys.executable, str(path), "a b"], 1, 30, {"X": "1"}, launcher=[])
    assert result.launcher_output == "1 ['a b']\n"


def test_time_limit_shows_stacks_and_leaves_nothing(tmp_path: Path) -> None:
    text = """
who = "rank" if os.fork() else "child"
def waits_for_ever():
    print(who, "is ready")
    time.sleep(1000)
who == "rank" or os.setsid()
waits_for_ever()
"""
    path = script(tmp_path, text)
    sleeping = re.compile(rf"process .* {path}\n  \d+ python\S*: S, ")
    with Job(path, 2) as job:
        for rank in range(2):
            job.wait_for("rank is ready", rank)
            job.wait_for("child is ready", rank)
        # The threads of the ranks and of their children.
        deadline = time.monotonic() + 60
        while len(sleeping.findall("".join(map(threads_of, job.processes())))) < 4:
            assert time.monotonic() < deadline, "a rank or its child does not sleep"
            time.sleep(0.05)
        result = job.wait(timeout_s=0.2)
        assert result.timed_out and job.processes() == []
    assert all("waits_for_ever" in output for output in result.outputs)
    assert len(sleeping.findall(result.launcher_output)) == 4
    assert not job.directory.exists()


def test_acts_on_a_running_job(tmp_path: Path) -> None:
    path = script(tmp_path, 'print("ready"); time.sleep(1000)')
    with Job(path, 2) as job:
        job.wait_for("ready", rank=0)
        job.wait_for("ready", rank=1)
        os.kill(job.pid(1), signal.SIGKILL)
        result = job.wait(timeout_s=20)
    assert not result.timed_out and result.returncode != 0


def test_a_killed_test_run_takes_its_ranks_along(tmp_path: Path) -> None:
    path = script(tmp_path, 'print("ready"); time.sleep(1000)')
    outer = tmp_path / "outer.py"
    outer.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from mpi import Job\n"
        f"with Job({str(path)!r}, 2) as job:\n"
        "    job.wait_for('ready', rank=0)\n"
        "    print(job.pid(0), job.pid(1), flush=True)\n"
        "    job.wait(1000)\n"
    )
    with Job([sys.executable, str(outer)], 1, launcher=[]) as job:
        job.wait_for("\n")
        ranks = [int(pid) for pid in job.launcher_output().split()]
        job.process.kill()
        wait_until_gone(ranks)
        killed = job.process.pid
    run_ranks(["true"], 1, 30)
    # The job of another test may be at removing it.
    deadline = time.monotonic() + 60
    while list(Path("/dev/shm").glob(f"{PREFIX}{killed}-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_running_job_keeps_its_directory_wherever_its_process_is(tmp_path: Path) -> None:
    """A container that shares /dev/shm does not see the process."""
    mine = JobDirectory(tmp_path)
    elsewhere = mine.path.rename(tmp_path / f"{PREFIX}{2**30}-abc")
    (elsewhere / "file").touch()
    remove_abandoned(tmp_path)
    assert (elsewhere / "file").exists()
    os.close(mine._lock)
    remove_abandoned(tmp_path)
    assert not elsewhere.exists()


def test_waiting_for_what_never_comes(tmp_path: Path) -> None:
    with Job(script(tmp_path, 'print("hello")'), 1) as job:
        with pytest.raises(AssertionError, match=r"(?s)waiting for 'ready'.*job ended.*hello"):
            job.wait_for("ready", rank=0)


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in place of /dev/shm, where jobs of other tests would find what this one left."""
    path = tmp_path / "shm"
    path.mkdir()
    monkeypatch.setattr(mpi, "SHM", path)
    return path


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("os.fork() or time.sleep(1000)", r"process \d+: .*script\.py"),
        ("import tempfile; tempfile.mkstemp()", r"temporary file .*/tmp\w+"),
        ('open(f"{SHM}/hvd_{os.getpid()}", "w")', r"shared segment .*/shm/hvd_\d+"),
    ],
)
def test_leftovers_are_found(tmp_path: Path, shm: Path, text: str, pattern: str) -> None:
    result = run_ranks(script(tmp_path, f"SHM = {str(shm)!r}\n{text}"), 1, 30)
    (left,) = result.leftovers
    assert re.fullmatch(pattern, left), result


def test_segments_of_others_are_no_leftovers(tmp_path: Path, shm: Path) -> None:
    """Such as another job's that has not unlinked its own yet."""
    path = script(tmp_path, 'print("ready"); time.sleep(1000)')
    with Job(path, 1) as job:
        job.wait_for("ready", rank=0)
        opened, mapped = shm / "hvd_opened", shm / "hvd_mapped"
        mapped.write_bytes(b"0" * mmap.PAGESIZE)
        with opened.open("w"), mapped.open("r+b") as file:
            with mmap.mmap(file.fileno(), 0):
                file.close()
                os.kill(job.pid(0), signal.SIGKILL)
                assert job.wait(timeout_s=60).leftovers == []


def test_the_limit_of_a_wait_begins_with_the_wait(tmp_path: Path) -> None:
    with Job(script(tmp_path, 'print("ready"); time.sleep(1)'), 1) as job:
        job.wait_for("ready", rank=0)
        job._start -= 1000  # as if what the test did before had taken so long
        assert not job.wait(timeout_s=60).timed_out


def test_how_a_file_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = {"RANKS": (1, 3), "HOSTS": "2x2", "IN_FULL": (3, 4, "2x2", "2x1")}
    few = [(1, None), (3, None), (4, "2x2")]
    for is_all, is_one_size, expected in (
        (False, False, few),
        (True, False, [*few, (4, None), (2, "2x1")]),
        (False, True, [(3, None)]),
    ):
        monkeypatch.setattr(rank_files, "ALL", is_all)
        monkeypatch.setattr(rank_files, "ONE_SIZE", is_one_size)
        assert rank_files.runs_of(constants) == expected


def test_how_a_file_is_run_on_a_gpu_that_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    also, only = {"RANKS": (3,), "GPU": (2, "2x2")}, {"RANKS": (), "GPU": (1, 3)}
    by_hosts = {"RANKS": (), "GPU": ("2x2",)}
    assert rank_files.gpu_runs_of(also) == [(2, None), (4, "2x2")]
    assert rank_files.gpu_runs_of(only) == [(1, None), (3, None)]
    assert rank_files.gpu_runs_of({"RANKS": (3,)}) == []
    monkeypatch.setattr(rank_files, "ONE_SIZE", True)
    assert rank_files.gpu_runs_of(also) == []
    assert rank_files.gpu_runs_of(only) == [(3, None)]
    assert rank_files.gpu_runs_of(by_hosts) == [(4, "2x2")]


FILE = f"""
import os
import time
import pytest
RANKS = (2,)
HOSTS = "2x1"
TIMEOUT_S = 20

@pytest.mark.parametrize("kind", ["good", "bad"])
def test_kinds(rank, kind):
    assert kind == "good" or rank == 0, f"seen on rank {{rank}}"

def test_skipped(rank):
    pytest.skip("not here")

def test_left(rank):
    if rank == 0:
        {RAISE_FLAG}
        time.sleep(1000)
{textwrap.indent(AWAIT_FLAG, "    ")}
    os._exit(7)

def test_after(rank):
    pass
"""
LATER = """
RANKS = (2,)

def test_later(rank):
    pass
"""
CONFTEST = f"""
import pytest

@pytest.fixture
def rank():
    return {RANK}
"""


def pytest_in(tmp_path: Path, *arguments: str) -> str:
    """Output of a pytest over a tree like ours whose tests/multi holds just FILE."""
    tests = tmp_path / "tests"
    if not tests.exists():
        (tests / "multi").mkdir(parents=True)
        for path in (ROOT / "tests").glob("*.py"):
            shutil.copy(path, tests)
        shutil.copy(ROOT / "pyproject.toml", tmp_path)
        (tests / "multi" / "conftest.py").write_text(CONFTEST)
        (tests / "multi" / "test_file.py").write_text(FILE)
        (tests / "multi" / "test_later.py").write_text(LATER)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    return done.stdout + done.stderr


def test_results_of_ranks_reach_the_outer_run(tmp_path: Path) -> None:
    output = pytest_in(tmp_path, "-k", "2ranks")
    # test_kinds[bad], test_left, test_after and the job itself. The other file gets another job.
    assert "3 failed, 2 passed, 1 skipped, 4 deselected, 1 error" in output, output
    assert "AssertionError: seen on rank 1" in output and "seen on rank 0" not in output
    assert "was in this test when the job ended with status 7" in output
    assert "did not get here: the job ended with status 7" in output


def jobs_of(tmp_path: Path, first: str, later: str) -> list[str]:
    """The pids that the cases of two files had on rank 0, when both pass. Of what each says."""
    notes = tmp_path / "pids"
    text = f"""
import os
RANKS = (2,)
def test_pid(rank):
    if rank == 0:
        with open({str(notes)!r}, "a") as file:
            print(os.getpid(), file=file)
"""
    pytest_in(tmp_path, "--collect-only")
    for name, says in (("test_file.py", first), ("test_later.py", later)):
        (tmp_path / "tests" / "multi" / name).write_text(says + text)
    output = pytest_in(tmp_path)
    assert "2 passed" in output, output
    return notes.read_text().split()


ALONE, OWN_INIT = "ALONE = True\n", "OWN_INIT = True\n"


@pytest.mark.parametrize(
    ("first", "later", "jobs"),
    [
        ("", "", 1),
        (ALONE, ALONE, 2),
        (OWN_INIT, OWN_INIT, 1),
        (OWN_INIT, "", 2),
    ],
)
def test_files_share_a_job_unless_they_ask_for_their_own(
    tmp_path: Path, first: str, later: str, jobs: int
) -> None:
    assert len(set(jobs_of(tmp_path, first, later))) == jobs


def test_selection_reaches_the_ranks(tmp_path: Path) -> None:
    output = pytest_in(tmp_path, "-k", "good and 2x1hosts")
    assert "1 passed, 8 deselected" in output, output
