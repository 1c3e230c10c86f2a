# SPDX-License-Identifier: Apache-2.0
"""hvdrun's last line names the rank that ended a job, its host and how it ended."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from cases import in_full
from mpi import Job, Result

PROGRAM = Path(__file__).with_name("rank_end_program.py")
HOST = re.escape(os.uname().nodename)


def run(ranks: int, *arguments: str, env: dict[str, str] | None = None) -> Result:
    parts = [f"--unset=OMPI_MCA_{part}_sm_backing_directory" for part in ("btl", "osc")]
    launcher = ["env", *parts, sys.executable, "-m", "hvd_tf.launch", "-np", str(ranks)]
    command = [sys.executable, str(PROGRAM), *arguments]
    with Job(command, ranks, env or {}, launcher=launcher) as job:
        return job.wait(60)


def last_line(result: Result) -> str:
    assert not result.timed_out and not result.leftovers, result.text
    return result.text.rstrip().splitlines()[-1]


@pytest.mark.parametrize(
    ("how", "words", "status"),
    [
        ("exit-3", "ended with status 3", 3),
        ("exit-0", "ended with status 0 while others went on", None),
        ("killed", r"was ended by signal 9 \(SIGKILL\), as the kernel does .*", 137),
        ("terminated", r"was ended by signal 15 \(SIGTERM\)", 143),
        ("segfault", r"was ended by signal 11 \(SIGSEGV\)", 139),
        ("aborted", r"was ended by signal 6 \(SIGABRT\)", 134),
    ],
)
def test_a_rank_of_any_program(how: str, words: str, status: int | None) -> None:
    result = run(3, "plain", how)
    line = last_line(result)
    assert re.fullmatch(rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) {words}", line), result.text
    assert result.returncode not in (0, None)
    assert status in (None, result.returncode), result.text


# A rank that leaves or is killed: test_exceptions.py and test_kill.py.
@pytest.mark.parametrize(
    "how", ["exit-3", *(pytest.param(how, marks=in_full) for how in ("exit-0", "killed"))]
)
def test_a_rank_of_a_training(how: str) -> None:
    result = run(2, "hvd", how)
    line = last_line(result)
    assert re.match(rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) (was )?ended (with|by) ", line), (
        result.text
    )
    assert result.returncode != 0


def test_a_rank_that_is_frozen_after_its_last_step() -> None:
    result = run(2, "hvd", "frozen", env={"HVD_STALL_SHUTDOWN_S": "3"})
    line = last_line(result)
    words = (
        rf"hvdrun: rank 1 \(host {HOST}, pid \d+\) is frozen: stopped by a signal for 3 s "
        r"\(HVD_STALL_SHUTDOWN_S\) while all others had ended; the job was ended"
    )
    assert re.fullmatch(words, line), result.text
    assert result.returncode != 0
