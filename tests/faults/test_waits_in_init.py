# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait in hvd.init, at first or again, for one that will not come or comes late."""

from __future__ import annotations

import re
import sys

import pytest
from cases import in_full
from exception_runs import PROGRAM, Run, chosen, run
from launching import waiting_hvdrun
from mpi import Job


# It has left for good, so nobody waits for it in a new start.
@pytest.mark.parametrize("what", ["exit", "shutdown", pytest.param("leave", marks=in_full)])
def test_a_rank_that_leaves_an_elastic_training(what: str) -> None:
    done = run(2, "elastic", what, "1")
    over, status = ("ended with status 3", 3) if what == "exit" else ("was over", 1)
    done.check(status)
    *_, last = done.text.splitlines()
    words = rf"hvdrun: rank 1 \(host .* left first: its program {over} .*"
    if what == "shutdown":  # the end of its program comes later, and may be behind rank 0's error
        words += r"|hvdrun: rank 0 \(host .* above, which names another rank as the reason"
    assert re.fullmatch(words, last), done.text
    assert re.search(r"rank 1 \(\S+\) has left: hvd.shutdown\(\) or the end", done.text), done.text


# Whoever of them hears of the other first ends the job.
@pytest.mark.parametrize(
    ("n", "bad"),
    [(2, "1"), pytest.param(2, "0", marks=in_full), pytest.param(4, "2", marks=in_full)],
)
def test_a_rank_that_leaves_while_others_go_back(n: int, bad: str) -> None:
    done = run(n, "elastic_all", "leave", bad)
    done.check()
    words = rf"because rank {bad} has left|waits for it; have all ranks take the same number"
    assert re.search(words, done.text), done.text


def test_a_rank_that_leaves_after_others_have_gone_back() -> None:
    done = run(2, "elastic_all", "leave", "1", LATE="1")
    done.check()
    words = "this rank's program is over, while rank 0 goes back to its last commit"
    assert words in done.text, done.text


# With plain mpirun nobody but the rank itself can end the job.
@pytest.mark.parametrize(
    ("place", "launcher"),
    chosen(
        {("in_init", "mpirun"), ("in_second_init", "hvdrun")},
        ["in_init", "in_second_init"],
        ["mpirun", "hvdrun"],
    ),
)
def test_an_exception_in_init(place: str, launcher: str) -> None:
    command = [sys.executable, str(PROGRAM), place, "fail", "1"]
    started_by = waiting_hvdrun("-np", "2") if launcher == "hvdrun" else None
    with Job(command, 2, launcher=started_by) as job:
        done = Run(job.wait(timeout_s=120))
    done.check()
    error = "ValueError: init was given the ranks [0] on rank 1, which is not among them"
    assert error in done.text, done.text
    if launcher == "hvdrun":
        assert done.last_words[0] == 1


# MPI would have its process wait for the others, which wait for it.
@pytest.mark.parametrize(
    ("n", "what", "bad", "words", "status"),
    [
        (2, "fail", "1", "was over while rank 0 waits", 1),
        (3, "exit", "0", "ended with status 3 while ranks 1, 2 wait", 3),
        pytest.param(2, "leave", "0", "was over while rank 1 waits", 1, marks=in_full),
    ],
)
def test_a_rank_that_leaves_while_others_wait_in_a_later_init(
    n: int, what: str, bad: str, words: str, status: int
) -> None:
    done = run(n, "between_inits", what, bad, HVD_STALL_SHUTDOWN_S="0")
    done.check(status)
    assert ("ValueError: wrong shoe size" in done.text) == (what == "fail"), done.text
    last = done.text.splitlines()[-1]
    words = f"left first: its program {words} for it in hvd.init(); the job was ended"
    assert re.fullmatch(rf"hvdrun: rank {bad} \(host \S+, pid \d+\) {re.escape(words)}", last), (
        done.text
    )


def test_ranks_that_wait_in_init_say_so() -> None:
    warning = "hvd.init() has waited for other ranks for 1 s: all ranks of the job"
    env = {"SECOND_HVD_STALL_WARNING_S": "1"}
    done = run(2, "late_for_init", "fail", "1", until=[warning], **env)
    assert done.result.returncode == 0 and done.text.count("finished") == 2, done.text
    assert re.search(rf"(?m)^\[0\] .*{re.escape(warning)}", done.text), done.text


def test_ranks_that_wait_in_a_later_init_for_too_long() -> None:
    env = {"SECOND_HVD_STALL_SHUTDOWN_S": "3"}
    done = run(2, "late_for_init", "fail", "1", go=False, **env)
    done.check()
    assert "has waited for other ranks for 3 s (HVD_STALL_SHUTDOWN_S)" in done.text, done.text
