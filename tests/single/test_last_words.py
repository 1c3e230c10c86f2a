# SPDX-License-Identifier: Apache-2.0
"""hvdrun's last line: which of several ends was the first cause, and in what words."""

from __future__ import annotations

import signal

import pytest

from hvd_tf._internal.failure_report import Report
from hvd_tf._internal.launcher import last_words
from hvd_tf._internal.launcher.rank_notices import Notice, RankState


def ended(rank: int, status: int, at: int, told: bool = False, aborted: bool = False) -> RankState:
    return RankState(
        process=Notice("ended", rank, "a", 10 + rank, at, status, told), mpi_has_aborted=aborted
    )


def left(rank: int, at: int, status: int | None = None) -> RankState:
    """An orderly end. Without a status the process still waits for MPI."""
    state = RankState(process=Notice("running", rank, "a", 10 + rank, 1))
    if status is not None:
        state = ended(rank, status, at + 1000, told=status < 0)
    state.leaving = Notice("leaving", rank, "a", 10 + rank, at)
    return state


def first_of(*states: RankState) -> int | None:
    end = last_words.first_end(dict(enumerate(states)))
    return end.rank if end else None


@pytest.mark.parametrize(
    ("states", "first"),
    [
        ([ended(0, 3, 20), ended(1, -9, 10)], 1),  # the earliest
        ([ended(0, -15, 5, told=True), ended(1, 3, 20)], 1),  # not what mpirun has ended
        ([ended(0, 0, 5), ended(1, 3, 20)], 1),  # failed, before ended as if all were well
        ([ended(0, -15, 30, told=True), ended(1, 0, 20)], 1),  # os._exit(0), and mpirun's answer
        ([ended(0, 16, 5, aborted=True), ended(1, -9, 20)], 1),  # MPI misses its peer first
        ([ended(0, 16, 30, aborted=True), ended(1, 0, 20)], 1),
        ([ended(0, 16, 30, aborted=True), left(1, 5, 0)], 0),  # an orderly end is no reason
        ([ended(0, -15, 5, told=True), left(1, 5)], None),
        ([RankState(), RankState()], None),
    ],
)
def test_the_first_cause(states: list[RankState], first: int | None) -> None:
    assert first_of(*states) == first


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "ended with status 3"),
        (0, "ended with status 0 while others went on"),
        (-int(signal.SIGSEGV), "was ended by signal 11 (SIGSEGV)"),
        (-9, "was ended by signal 9 (SIGKILL), as the kernel does when memory runs out"),
        (-64, "was ended by signal 64 (SIGRTMAX)"),
        (-50, "was ended by signal 50"),
    ],
)
def test_how_a_rank_ended(status: int, words: str) -> None:
    end = Notice("ended", 1, "node1", 7, 5, status)
    assert last_words.of_end(end, {1: RankState()}) == f"rank 1 (host node1, pid 7) {words}"


@pytest.mark.parametrize(
    ("blames_peer", "other", "words", "is_first"),
    [
        (False, ended(1, 1, 60), "rank 0 (host a, pid 10) ended by the uncaught exception ", True),
        (False, ended(1, 0, 40), "rank 0 (host a, pid 10) ended by the uncaught exception ", True),
        (False, ended(1, 3, 40), "rank 1 (host a, pid 11) ended with status 3", False),
        (True, ended(1, 0, 40), "rank 1 (host a, pid 11) ended with status 0 while", False),
        (True, left(1, 40), "rank 1 (host a, pid 11) left first: its program was over", False),
        (True, left(1, 40, -15), "rank 1 (host a, pid 11) left first: its program was over", False),
        (True, RankState(), "rank 0 (host a, pid 10) ended by the uncaught exception above,", True),
    ],
)
def test_beside_an_exception(
    blames_peer: bool, other: RankState, words: str, is_first: bool
) -> None:
    report = Report(50, 0, "a", 10, "ValueError: x\n", blames_peer)
    states = {0: ended(0, 1, 70), 1: other}
    found = last_words.of_report(report, states)
    assert found[0].startswith(words) and found[1] == is_first


def test_a_rank_that_left_by_sys_exit() -> None:
    report = Report(50, 0, "a", 10, "...", blames_peer=True)
    gone = left(1, 20)
    gone.leaving = Notice("leaving", 1, "a", 11, 20, status=3)
    found = last_words.of_report(report, {0: ended(0, 1, 70), 1: gone})
    words = "rank 1 (host a, pid 11) left first: its program ended with status 3 while others"
    assert found.line.startswith(words) and found.status == 3
    assert last_words.of_report(report, {0: ended(0, 1, 70), 1: left(1, 20)}).status == 0
    states = {0: ended(0, 1, 70), 1: left(1, 20), 2: left(2, 10), 3: left(3, 30)}
    assert last_words.of_report(report, states).line.startswith("rank 2 (host a, pid 12) left")


@pytest.mark.parametrize(("started_at", "has_left"), [(10, True), (30, False)])
def test_a_script_may_run_a_program_behind_one_that_was_over(
    started_at: int, has_left: bool
) -> None:
    state = left(1, 20)
    state.started = Notice("started", 1, "a", 12, started_at)
    assert (state.left is not None) == has_left
