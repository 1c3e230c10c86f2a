# SPDX-License-Identifier: Apache-2.0
"""Which exception has ended a rank: not that of a program of which the rank makes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvd_tf._internal.failure_report import Report
from hvd_tf._internal.launcher.rank_exceptions import first_exception
from hvd_tf._internal.launcher.rank_notices import Notice, RankState

# From another process than the rank's own, which has the number 10.
CHILD = Report(50, 0, "a", 7, "ValueError: x\n", ends_job=False)
OWN = replace(CHILD, pid=10)
RUNS = RankState(process=Notice("running", 0, "a", 10, 1))


def ended(status: int, told: bool = False, aborted: bool = False) -> RankState:
    return RankState(process=Notice("ended", 0, "a", 10, 60, status, told), mpi_has_aborted=aborted)


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (None, False),
        (RUNS, False),
        (ended(0), False),  # `python a.py || true`
        (ended(1), True),  # `python a.py; exit $?`
        (ended(3), False),  # an end of its own
        (ended(-9), False),
        (ended(1, told=True), False),  # by mpirun
        (ended(1, aborted=True), False),  # it misses a peer
    ],
)
def test_a_program_that_a_rank_has_started(state: RankState | None, counts: bool) -> None:
    states = {} if state is None else {0: state}
    assert first_exception([CHILD], states) == (CHILD if counts else None)


@pytest.mark.parametrize("state", [RUNS, ended(1), ended(1, told=True), ended(-9)])
def test_the_rank_itself(state: RankState) -> None:
    assert first_exception([OWN], {0: state}) == OWN


def test_the_same_number_elsewhere_is_another_process() -> None:
    assert first_exception([replace(OWN, host="b")], {0: RUNS}) is None


def test_whoever_ends_the_job_counts_at_once() -> None:
    report = replace(CHILD, ends_job=True)
    assert first_exception([report], {}) == report


def test_of_several_of_one_rank_the_last_has_ended_it() -> None:
    later = replace(CHILD, pid=8, time_ns=55)  # `python a.py || python b.py`
    assert first_exception([later, CHILD], {0: ended(1)}) == later


@pytest.mark.parametrize("ends_job", [False, True])
def test_a_rank_that_has_told_itself_has_no_other_reason(ends_job: bool) -> None:
    own = replace(OWN, time_ns=55, ends_job=ends_job)
    assert first_exception([own, CHILD], {0: ended(1)}) == own


def test_the_first_of_the_ranks() -> None:
    states = {0: ended(1), 1: RankState(process=Notice("ended", 1, "a", 11, 60, 1))}
    other = replace(CHILD, rank=1, pid=8, time_ns=40)
    assert first_exception([CHILD, other], states) == other


@pytest.mark.parametrize(
    ("own", "of_other", "counts"),
    [
        (ended(0), RankState(started=Notice("started", 1, "a", 12, 55)), True),
        (ended(0), RankState(process=Notice("running", 1, "a", 11, 1)), False),
        # hvd.init(comm=[1])
        (ended(0), RankState(started=Notice("started", 1, "a", 12, 55, of_some=True)), False),
        # `python a.py || python b.py`
        (replace(ended(0), started=Notice("started", 0, "a", 8, 55)), None, False),
        (RUNS, RankState(started=Notice("started", 1, "a", 12, 55)), False),
        # It has come out of `init`, as where it trains alone.
        (
            ended(0),
            RankState(
                started=Notice("started", 1, "a", 12, 55), leaving=Notice("leaving", 1, "a", 12, 57)
            ),
            False,
        ),
        (ended(0, told=True), RankState(started=Notice("started", 1, "a", 12, 55)), False),
    ],
)
def test_a_rank_that_never_calls_init_while_others_do(
    own: RankState, of_other: RankState | None, counts: bool
) -> None:
    """`python a.py; true`: the others wait for it, and its end tells nothing."""
    states = {0: own} if of_other is None else {0: own, 1: of_other}
    assert first_exception([CHILD], states) == (CHILD if counts else None)
