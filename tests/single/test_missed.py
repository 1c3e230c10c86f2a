# SPDX-License-Identifier: Apache-2.0
"""The launcher's look for ranks that wait in init for one whose program is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_tf._internal.launcher.missed import LIMIT_S, Missed
from hvd_tf._internal.launcher.rank_notices import Notice, RankNotices, RankState


def started(rank: int, completed: int, time_ns: int = 5, of_some: bool = False) -> Notice:
    return Notice("started", rank, "a", 7, time_ns, completed=completed, of_some=of_some)


def over(rank: int = 1, completed: int = 1, status: int = 0) -> RankState:
    left = Notice("leaving", rank, "a", 7, 6, status=status, completed=completed)
    return RankState(started=started(rank, 0, 1), leaving=left)


def look(directory: Path, *states: RankState) -> Missed:
    """At them for as long as it takes."""
    missed = Missed(RankNotices(directory))
    by_rank = dict(enumerate(states))
    goes_on = [missed._look(by_rank, at_s) for at_s in (0.0, LIMIT_S - 1, LIMIT_S)]
    assert goes_on == [True, True, not missed.words]
    return missed


@pytest.mark.parametrize(
    ("status", "how"), [(0, "was over"), (3, "ended with status 3")], ids=["0", "3"]
)
def test_a_rank_that_is_waited_for_in_vain(tmp_path: Path, status: int, how: str) -> None:
    missed = look(tmp_path, RankState(started=started(0, 1)), over(status=status))
    assert missed.words == (
        f"rank 1 (host a, pid 7) left first: its program {how} while rank 0 waits for it in "
        "hvd.init(); the job was ended"
    )
    assert missed.status == status


def test_many_ranks_that_wait(tmp_path: Path) -> None:
    waiting = [RankState(started=started(rank, 2)) for rank in range(20)]
    words = look(tmp_path, *waiting, over(20)).words
    named = ", ".join(map(str, range(16)))
    assert f"while ranks {named} and 4 more wait for it" in words


@pytest.mark.parametrize(
    "other",
    [
        RankState(),
        RankState(started=started(0, 0)),  # of a script's next program, it may be
        RankState(started=started(0, 1, of_some=True)),
        RankState(started=started(0, 1), returned=Notice("returned", 0, "a", 7, 6)),
        over(0),
    ],
    ids=["unknown", "first", "of some", "failed", "over too"],
)
def test_a_rank_that_does_not_wait(tmp_path: Path, other: RankState) -> None:
    assert not look(tmp_path, other, over()).words


def test_a_rank_that_waits_again_after_a_call_that_has_failed(tmp_path: Path) -> None:
    returned = Notice("returned", 0, "a", 7, 4)
    assert look(tmp_path, RankState(started=started(0, 1), returned=returned), over()).words


def test_a_rank_that_has_taken_part_in_the_call(tmp_path: Path) -> None:
    assert not look(tmp_path, RankState(started=started(0, 1)), over(completed=2)).words


def test_a_rank_whose_script_runs_the_next_program(tmp_path: Path) -> None:
    again = over()
    again.started = started(1, 0, time_ns=7)
    assert not look(tmp_path, RankState(started=started(0, 1)), again).words


def test_ranks_that_find_it_out_themselves(tmp_path: Path) -> None:
    missed = Missed(RankNotices(tmp_path))
    waiting = {0: RankState(started=started(0, 1)), 1: over()}
    assert missed._look(waiting, 0.0)
    assert missed._look({0: over(0), 1: over()}, LIMIT_S - 1)
    assert missed._look(waiting, LIMIT_S + 1) and not missed.words
