# SPDX-License-Identifier: Apache-2.0
"""What the launcher knows of its ranks by the files that they leave."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hvd_tf._internal.launcher.output import Output, tagged
from hvd_tf._internal.launcher.rank_notices import RankNotices
from hvd_tf._internal.launcher.starts import Starts


def leave(directory: Path, what: str, time_ns: int, **facts: int | bool) -> None:
    """Puts another notice into the same file, as a file system does that uses an inode again."""
    notice = {"what": what, "rank": 0, "host": "a", "pid": 7, "time_ns": time_ns, **facts}
    path = directory / "rank-0.process"
    path.write_text(json.dumps(notice))
    os.utime(path, ns=(time_ns, time_ns))


def test_a_notice_in_a_file_of_the_same_inode_is_seen(tmp_path: Path) -> None:
    notices = RankNotices(tmp_path)
    leave(tmp_path, "running", 1)
    assert not notices.states()[0].is_stopped
    leave(tmp_path, "stopped", 2)
    assert notices.states()[0].is_stopped
    leave(tmp_path, "ended", 2, status=3, told=False)  # the clock of files may be coarse
    end = notices.states()[0].ended
    assert end is not None and end.status == 3


def test_three_notices_between_two_looks(tmp_path: Path) -> None:
    notices = RankNotices(tmp_path)
    for number in range(100):
        for what in ("running", "stopped", "ended"):
            draft = tmp_path / ".rank-0.process"
            facts = {"what": what, "rank": 0, "host": "a", "pid": 7, "time_ns": 3 * number}
            draft.write_text(json.dumps(facts))
            draft.rename(tmp_path / "rank-0.process")
            if what == "running":
                assert not notices.states()[0].ended
        assert notices.states()[0].ended


def test_a_notice_that_has_lost_its_tag_is_not_shown(tmp_path: Path) -> None:
    notices = RankNotices(tmp_path)
    end = {"what": "ended", "rank": 2, "host": "a", "pid": 7, "time_ns": 3, "status": 1}
    lines = f"[1,2]<stderr>: E\n\0\x1e{notices.word} {json.dumps(end)}\nprterun has exited\n"
    source, ranks = os.pipe()
    shown, sink = os.pipe()
    output = Output(watch=notices.see)
    output.add(source, sink, tagged(5), own=True)
    os.write(ranks, lines.encode())
    os.close(ranks)
    output.start()
    output.finish(bytes)
    assert output.finished(timeout_s=20)
    output.close()
    os.close(sink)
    with open(shown, "rb") as file:
        assert file.read() == b"[2] E\nprterun has exited\n"
    state = notices.states()[2]
    assert state.ended is not None and state.ended.status == 1


def test_what_stands_before_a_notice_is_a_line(tmp_path: Path) -> None:
    notices = RankNotices(tmp_path)
    end = {"what": "ended", "rank": 2, "host": "a", "pid": 7, "time_ns": 3}
    lines = f"half a line\x1e{notices.word} {json.dumps(end)}\n".encode()
    assert notices.see(2, lines) == b"half a line\n" and list(notices.states()) == [2]


def test_a_notice_of_no_rank_is_none(tmp_path: Path) -> None:
    notices = RankNotices(tmp_path)
    for wrong in ({"rank": -1}, {"rank": "0"}, {"host": 1}, {"told": 1}, {"more": 1}):
        facts = {"what": "ended", "rank": 0, "host": "a", "pid": 7, "time_ns": 3, **wrong}
        notices.see(0, f"\x1e{notices.word} {json.dumps(facts)}\n".encode())
    assert notices.states() == {} and notices.heard_of() == set()


@pytest.mark.parametrize(("ranks", "more"), [(16, ""), (17, " and 1 more")])
def test_ranks_that_are_late_are_named(tmp_path: Path, ranks: int, more: str) -> None:
    starts = Starts(RankNotices(tmp_path), ranks, limit_s=2.0)
    assert not starts.check().passes()
    named = ", ".join(map(str, range(16)))
    assert starts.words().startswith(f"ranks {named}{more} of {ranks} have not called hvd.init()")


def test_mpi_aborts_on_a_rank_that_is_known(tmp_path: Path) -> None:
    notices = RankNotices(tmp_path)
    words = b"[h3:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator\n"
    assert notices.see(None, words) == words and not notices.mpi_has_aborted
    assert notices.see(1, words) == words and notices.states()[1].mpi_has_aborted
