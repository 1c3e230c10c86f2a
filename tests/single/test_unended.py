# SPDX-License-Identifier: Apache-2.0
"""The launcher's look for ranks that have not ended when all others have."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from hvd_tf._internal.launcher.rank_notices import Notice, RankNotices, RankState
from hvd_tf._internal.launcher.unended import Unended


def unended(directory: Path, ranks: int) -> Unended:
    environ = {"HVD_STALL_SHUTDOWN_S": "3"}
    return Unended(RankNotices(directory), ranks, environ, say=lambda words: None)


def state(what: str) -> RankState:
    return RankState(process=Notice(what, 0, "a", 7, 5))


def test_horovods_switch_turns_the_limits_off(tmp_path: Path) -> None:
    environ = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3", "HOROVOD_STALL_CHECK_DISABLE": "1"}
    frozen = {0: state("ended"), 1: state("stopped")}
    for also, goes_on in (({}, True), ({"HVD_STALL_SHUTDOWN_S": "3"}, False)):
        said: list[str] = []
        looks = Unended(RankNotices(tmp_path), 2, {**environ, **also}, said.append)
        assert looks._look(frozen, 1000.0) is goes_on and said == []


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
