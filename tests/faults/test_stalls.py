# SPDX-License-Identifier: Apache-2.0
"""A rank freezes, or its program does: it is named, all show where they are, the job ends.

HVD_TEST_FAULT_REPEATS=20 does each so often, instead of once.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cases import in_full
from launching import waiting_hvdrun
from mpi import Job

PROGRAM = Path(__file__).with_name("stall_program.py")
REPEATS = range(int(os.environ.get("HVD_TEST_FAULT_REPEATS", "1")))
WARNING_S, SHUTDOWN_S = 1.0, 3.0


@contextmanager
def started(
    what: str, ranks: int, ranks_a_host: int = 0, shutdown_s: float = SHUTDOWN_S, seed: int = 0
) -> Iterator[Job]:
    program = [sys.executable, str(PROGRAM), what, str(ranks_a_host)]
    env = {
        "HVD_STALL_WARNING_S": str(WARNING_S),
        "HVD_STALL_SHUTDOWN_S": str(shutdown_s),
        "HVD_MISMATCH_WARNING_S": str(WARNING_S),
        "SEED": str(seed),
    }
    with Job(program, ranks, env, launcher=waiting_hvdrun("-np", str(ranks))) as job:
        for rank in range(ranks):
            job.wait_for(f"[{rank}] started")
        yield job


def given_up(job: Job, rank: int, since_s: float) -> str:
    """Checks that the job ends because of that rank. Returns what was written."""
    result = job.wait(60)
    seconds = time.monotonic() - since_s
    text = result.launcher_output
    assert not result.timed_out and result.returncode not in (0, None), result.text
    assert seconds >= SHUTDOWN_S, f"{seconds:.1f} s: {result.text}"
    assert result.leftovers == [], result.text
    assert f"rank {rank} ({os.uname().nodename}) failed: " in text, result.text
    return text


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 60
    while "State:\tT" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines_of(text: str, rank: int) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith(f"[{rank}]"))


@pytest.mark.parametrize("repeat", REPEATS)
@pytest.mark.parametrize(
    ("ranks", "ranks_a_host", "frozen"),
    [
        pytest.param(2, 0, 0, id="2ranks-first"),
        pytest.param(3, 0, 2, id="3ranks-last", marks=in_full),
        pytest.param(4, 2, 0, id="2x2hosts-first", marks=in_full),
        pytest.param(4, 2, 3, id="2x2hosts-last", marks=in_full),
    ],
)
def test_a_frozen_rank(ranks: int, ranks_a_host: int, frozen: int, repeat: int) -> None:
    with started("train", ranks, ranks_a_host) as job:
        time.sleep(random.Random(repeat).uniform(0, 0.3))  # at some moment of a step
        since_s = time.monotonic()
        os.kill(job.pid(frozen), signal.SIGSTOP)
        text = given_up(job, frozen, since_s)
    # The lowest rank that lives says so, and then each that lives.
    teller = 1 if frozen == 0 else 0
    assert f"rank {frozen} ({os.uname().nodename}) has not answered" in lines_of(text, teller)
    assert "tensors wait on this rank: 's" in text or "tensor waits on this rank: 's" in text
    for rank in set(range(ranks)) - {frozen}:
        assert f"hvd_tf: Python stacks of rank {rank} " in lines_of(text, rank)
        assert re.search(r"line \d+ in train_one_step", lines_of(text, rank)), text
    assert f"hvd_tf: Python stacks of rank {frozen} " not in text
    # In the traceback that hvdrun repeats.
    last = "\n".join(text.splitlines()[-20:])
    assert f"rank {frozen} ({os.uname().nodename}) failed: it has not" in last, text


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_rank_whose_program_is_stuck(repeat: int) -> None:
    with started("locked", 2) as job:
        since_s = time.monotonic()
        (job.directory / "go").touch()
        text = given_up(job, 1, since_s)
    assert "tensors have waited for rank 1" in lines_of(text, 0)
    assert re.search(r"line \d+ in waits_for_a_lock", lines_of(text, 1)), text
    failed = rf"rank 1 \({os.uname().nodename}\) failed: for \d+ s it has not asked for 's1'"
    assert re.search(failed, text), text


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_rank_that_freezes_while_nothing_waits_for_it(repeat: int) -> None:
    with started("evaluate", 2) as job:
        since_s = time.monotonic()
        os.kill(job.pid(0), signal.SIGSTOP)
        job.wait_for("failed: it has not answered")
        (job.directory / "go").touch()  # it ends, and does not wait in MPI for the frozen one
        text = given_up(job, 0, since_s)
    assert "has not answered" in lines_of(text, 1)


@pytest.mark.parametrize("repeat", REPEATS)
def test_a_sessions_timeout_beside_a_frozen_rank(repeat: int) -> None:
    with started("timeout", 2, shutdown_s=60, seed=repeat) as job:
        job.wait_for("[0] DeadlineExceededError")
        wait_until_stopped(job.pid(1))
        os.kill(job.pid(1), signal.SIGCONT)
        result = job.wait(60)
    text = result.launcher_output
    assert result.returncode == 0 and not result.timed_out and result.leftovers == [], text
    assert text.count("all was right") == 2, text
    # Rank 1 fails as well, or it had all that it needed for the step.
    errors = re.findall(r"(?m)^\[1\] (\w+Error)$", text)
    assert errors in (["UnknownError"], []), text


@pytest.mark.parametrize("repeat", REPEATS)
def test_pauses_below_the_limit(repeat: int) -> None:
    with started("pauses", 2, shutdown_s=60) as job:
        pipe = job.directory / "pipe"
        os.mkfifo(pipe)
        os.kill(job.pid(1), signal.SIGSTOP)
        time.sleep(4)  # far longer than what is warned of
        job.wait_for("has not answered for")
        os.kill(job.pid(1), signal.SIGCONT)
        (job.directory / "go").touch()
        job.wait_for(" in holds_the_interpreter")
        pipe.write_bytes(b"x")
        result = job.wait(60)
    text = result.launcher_output
    assert result.returncode == 0 and not result.timed_out and result.leftovers == [], text
    assert text.count("all was right") == 2
    warning = rf"rank 1 \({os.uname().nodename}\) has not answered for \d+ s"
    assert re.search(warning, lines_of(text, 0)), text
    assert f"rank 1 ({os.uname().nodename}) answers again" in lines_of(text, 0)
    # No thread of that rank's could run Python meanwhile.
    assert re.search(r"line \d+ in holds_the_interpreter", lines_of(text, 1)), text


def test_names_that_differ_fail_at_the_limit_with_both_names() -> None:
    with started("mismatch", 2) as job:
        result = job.wait(60)
    text = result.launcher_output
    assert result.returncode == 0 and not result.timed_out and result.leftovers == [], text
    pair = "'loss_0/total' on rank 0 and 'loss_1/total' on rank 1 look like one tensor"
    assert text.count("all was right") == 2  # the job lives
    for rank in (0, 1):
        written = lines_of(text, rank)
        assert "eager call: " in written and "function call: " in written, text
        # The pair is in each error. Rank 0 has warned of each pair before.
        assert written.count(pair) == (4 if rank == 0 else 2), text
    assert lines_of(text, 0).count("hvd_tf warning [rank 0]: Every rank waits for") == 2, text
