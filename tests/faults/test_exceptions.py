# SPDX-License-Identifier: Apache-2.0
"""One rank goes wrong: the others say why, everything ends without help, its words are last.

HVD_TEST_ALL=1 tries more combinations.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from cases import in_full
from exception_runs import ERROR, PATIENT, PROGRAM, Run, chosen, run
from launching import waiting_hvdrun
from mpi import Job

PLACES = ("eager", "session", "estimator")


@pytest.mark.parametrize(
    ("place", "ranks"),
    chosen(
        {("eager", (4, 2)), ("estimator", (2, 1))},
        PLACES,
        [(2, 0), (2, 1), (4, 2)],
    ),
)
def test_an_exception(place: str, ranks: tuple[int, int]) -> None:
    n, bad = ranks
    peers = set(range(n)) - {bad}
    words = [f"[{p}] hvd_tf: rank {p} ends because rank {bad} failed: " for p in peers]
    done = run(n, place, "fail", str(bad), until=words)
    done.check()
    rank, traceback = done.last_words
    assert rank == bad
    assert traceback.startswith("Traceback") and ERROR in traceback
    if place != "estimator":  # where it comes out of an operation, with TensorFlow's words around
        assert traceback.endswith(f"\n{ERROR}\nsecond line\n")
    for peer in peers:
        line = rf"(?m)^\[{peer}\] hvd_tf: rank {peer} ends because rank {bad} failed: .*{ERROR}$"
        assert re.search(line, done.text), done.text


@pytest.mark.parametrize("place", ["session", pytest.param("eager", marks=in_full)])
def test_an_exception_in_other_words(place: str) -> None:
    line = f"[0] hvd_tf: rank 0 ends because rank 1 failed: {ERROR}"
    done = run(2, place, "fail", "1", REWORD="1", until=[line])
    done.check()
    assert done.last_words[0] == 1
    assert line in done.text.splitlines(), done.text


@pytest.mark.parametrize("bad", ["0", pytest.param("1", marks=in_full)])
def test_under_plain_mpirun(bad: str) -> None:
    command = [sys.executable, str(PROGRAM), "eager", "fail", bad]
    words = f"ends because rank {bad} failed: {ERROR}"
    with Job(command, 2, PATIENT) as job:
        job.wait_for(words, rank=1 - int(bad))
        (job.directory / "go").touch()
        done = Run(job.wait(timeout_s=120))
    done.check()
    output = done.result.outputs[int(bad)]
    first, heading, last = output.partition(f"\nrank {bad} (host ")
    assert heading and first.rstrip().endswith("second line"), output
    assert "failed first:\nTraceback" in last and f"{ERROR}\nsecond line\n" in last
    assert "Traceback" not in last.rpartition(f"{ERROR}\nsecond line\n")[2]


@pytest.mark.parametrize(
    ("order", "place"),
    chosen({("last", "eager")}, ["first", "last"], ["eager", "before_init"]),
)
def test_with_mpi4py(order: str, place: str) -> None:
    pytest.importorskip("mpi4py.rc")
    done = run(2, place, "fail", "1", MPI4PY=order)
    done.check()
    rank, traceback = done.last_words
    assert rank == 1 and traceback.endswith("second line\n")


def test_before_init() -> None:
    done = run(2, "before_init", "fail", "1")
    done.check()
    rank, traceback = done.last_words
    assert rank == 1 and traceback.endswith(f"{ERROR}\nsecond line\n")


def test_after_shutdown_it_is_the_ranks_own_affair() -> None:
    done = run(2, "after_shutdown", "fail", "1")
    # Its peer has no need to fail.
    done.text = done.text.replace("[0] finished", "")
    assert "[0] finished" in done.result.text
    assert done.result.returncode == 1 and "finished" not in done.text, done.text
    assert f"[1] {ERROR}" in done.text and "failed first" not in done.text, done.text
    assert not done.result.timed_out and done.result.leftovers == []


@pytest.mark.parametrize("grace", [{"HVD_ABORT_GRACE_S": "0"}, pytest.param({}, marks=in_full)])
def test_peers_that_compute_are_ended(grace: dict[str, str]) -> None:
    done = run(2, "slow_peers", "fail", "1", **grace)
    done.check()
    assert done.last_words[0] == 1


@pytest.mark.parametrize(
    ("place", "n", "bad"),
    [("eager", 2, "0 1"), pytest.param("session", 4, "1 2", marks=in_full)],
)
def test_two_fail_together(place: str, n: int, bad: str) -> None:
    # Each shows its own traceback where it happened.
    done = run(n, place, "fail", *bad.split(), until=[f"[{own}] {ERROR}" for own in bad.split()])
    done.check()
    rank, traceback = done.last_words
    assert str(rank) in bad.split() and ERROR in traceback


def test_a_hook_of_the_users_own() -> None:
    hooks = ["[1] my hook: ValueError", "[0] my hook: UnknownError"]
    done = run(2, "eager", "fail", "1", HOOK="1", until=hooks)
    done.check()
    assert done.last_words[1].endswith(f"{ERROR}\nsecond line\n")


@pytest.mark.parametrize(
    ("place", "what"),
    chosen(
        {("session", "leave"), ("eager", "interrupt")},
        ["eager", "session"],
        ["exit", "leave", "interrupt"],
    ),
)
def test_a_rank_that_leaves(place: str, what: str) -> None:
    done = run(2, place, what, "1")
    over, status = ("ended with status 3", 3) if what == "exit" else ("was over", 1)
    done.check(status)
    # Its peer cannot go on, and says why. The last line says what came before.
    *_, last = done.text.splitlines()
    left = r"hvdrun: rank 1 \(host \S+, pid \d+\) left first: its program "
    left += f"{over} while others went on"
    assert re.fullmatch(left, last), done.text
    _, _, words = done.text.rpartition("\nhvdrun: rank 0 (host ")
    assert re.match(r"\S+, pid \d+\) failed:\nTraceback", words), done.text
    assert "rank 1 (" in words and "has left" in words, done.text


@in_full  # test_kill.py does it at any moment
@pytest.mark.parametrize("n", [2, 4])
def test_a_rank_is_killed(n: int) -> None:
    command = [sys.executable, str(PROGRAM), "endless", "fail"]
    with Job(command, n, launcher=waiting_hvdrun("-np", str(n))) as job:
        job.wait_for(f"[{n - 1}] step 3")
        os.kill(rank_pid(job, n - 1), signal.SIGKILL)
        result = job.wait(60)
    assert result.returncode == 137 and not result.timed_out, result.text
    assert result.leftovers == []


@in_full  # test_launcher_faults.py does it with busy cores
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_launcher_is_stopped(number: int) -> None:
    launcher = waiting_hvdrun("-np", "2", "--verbose")
    with Job([sys.executable, str(PROGRAM), "endless", "fail"], 2, launcher=launcher) as job:
        for rank in range(2):
            job.wait_for(f"[{rank}] step 3")
        job.process.send_signal(number)
        result = job.wait(60)
    assert result.returncode == 128 + number and not result.timed_out, result.text
    assert result.leftovers == []
    found = re.search(r"temporary files in (\S+), shared memory in (\S+)\n", result.text)
    assert found is not None, result.text
    assert not Path(found[1]).exists() and not Path(found[2]).exists()


def rank_pid(job: Job, rank: int) -> int:
    """The process that says it is this rank."""
    found = re.search(rf"(?m)^\[{rank}\] pid (\d+)$", job.launcher_output())
    assert found is not None, job.launcher_output()
    return int(found[1])
