# SPDX-License-Identifier: Apache-2.0
"""The launcher's look for ranks that have not ended when all others have."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvd_tf._internal.launcher.rank_notices import Notice, RankNotices, RankState
from hvd_tf._internal.launcher.unended import Unended


def unended(directory: Path, ranks: int) -> Unended:
    environ = {"HVD_STALL_SHUTDOWN_S": "3"}
    return Unended(RankNotices(directory), ranks, environ, say=lambda words: None)


def state(what: str, rank: int = 1) -> RankState:
    notice = Notice(what, rank, "a", 7, 5)
    return RankState(process=notice, started=notice)


def test_horovods_switch_turns_the_limits_off(tmp_path: Path) -> None:
    environ = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3", "HOROVOD_STALL_CHECK_DISABLE": "1"}
    frozen = {0: state("ended"), 1: state("stopped")}
    for also, goes_on, warns in (
        ({}, True, False),
        ({"HVD_STALL_SHUTDOWN_S": "3"}, False, False),
        ({"HVD_STALL_WARNING_S": "3"}, True, True),
    ):
        said: list[str] = []
        looks = Unended(RankNotices(tmp_path), 2, {**environ, **also}, said.append)
        assert looks._look(frozen, 1000.0) is goes_on and bool(said) is warns


@pytest.mark.parametrize(("shutdown_s", "warned_after_s"), [("61", 60), ("60", 30), ("10", 5)])
def test_a_frozen_rank_is_warned_of_before_the_job_ends(
    tmp_path: Path, shutdown_s: str, warned_after_s: int
) -> None:
    said: list[str] = []
    environ = {"HVD_STALL_SHUTDOWN_S": shutdown_s}
    looks = Unended(RankNotices(tmp_path), 2, environ, said.append)
    frozen = {0: state("ended"), 1: state("stopped")}
    spoke_at = [s for s in range(1, int(shutdown_s)) if looks._look(frozen, 1.0) and len(said) == 1]
    assert spoke_at[0] == warned_after_s and len(spoke_at) == int(shutdown_s) - warned_after_s
    assert not looks._look(frozen, 1.0)
    assert said == [
        f"rank 1 (host a, pid 7) is still there {warned_after_s} s after all others had ended: "
        "stopped by a signal; 'kill -CONT <pid>' lets it go on"
    ]


def test_others_that_are_left_are_named_anew(tmp_path: Path) -> None:
    said: list[str] = []
    looks = Unended(RankNotices(tmp_path), 3, {"HVD_STALL_WARNING_S": "2"}, said.append)
    for of_rank_1 in ("running", "ended"):
        states = {0: state("ended"), 1: state(of_rank_1), 2: state("running", rank=2)}
        assert all(looks._look(states, 1.0) for _ in range(5))
    assert [words.partition(" still")[0] for words in said] == [
        "rank 1 (host a, pid 7), rank 2 (host a, pid 7) are",
        "rank 2 (host a, pid 7) is",
    ]


def test_a_rank_that_went_on_in_between_is_frozen_anew(tmp_path: Path) -> None:
    looks = unended(tmp_path, ranks=2)
    for what, goes_on in (("stopped", True), ("running", True), ("stopped", True)):
        assert looks._look({0: state("ended"), 1: state(what)}, 2.0) is goes_on
    assert not looks._look({0: state("ended"), 1: state("stopped")}, 2.0)


def test_a_launcher_that_was_stopped_itself_counts_little_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: clock_s)
    monkeypatch.setattr("hvd_tf._internal.launcher.unended.time", clock)
    looks = unended(tmp_path, ranks=2)
    frozen = {0: state("ended"), 1: state("stopped")}
    monkeypatch.setattr(looks, "_notices", SimpleNamespace(states=lambda: frozen))
    check = looks.check()
    clock_s = 1000.0
    assert check.passes() and check.at_s == 1001.0
    clock_s = 1001.0
    assert not check.passes()


def test_a_look_lists_no_ranks_before_one_has_left(tmp_path: Path) -> None:
    looks = unended(tmp_path, ranks=1_000_000)
    tracemalloc.start()
    assert looks._look({0: state("running")}, 1.0)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000


def test_the_time_begins_anew_when_a_rank_has_begun_anew(tmp_path: Path) -> None:
    looks = unended(tmp_path, ranks=2)
    frozen = {0: state("ended"), 1: state("stopped")}
    assert looks._look(frozen, 2.0)
    assert looks._look({**frozen, 0: state("running")}, 2.0)
    assert looks._look(frozen, 2.0)
    assert not looks._look(frozen, 2.0)
