# SPDX-License-Identifier: Apache-2.0
"""hvdrun with more ranks than the machine can have, or than anybody means."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import fake_mpirun, left_of, run, stop_left

ALLOWED = 1000
KERNEL = """
from hvd_tf._internal.launcher import process_limit
process_limit.KERNEL_LIMITS = ("/none", {path!r})
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    fake_mpirun(tmp_path, "note()")
    (tmp_path / "limit").write_text(f"{ALLOWED}\n")
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


def words_of(job: Path, code: int, *options: str) -> str:
    change = KERNEL.format(path=str(job / "limit"))
    result = run(job, [*options, "true"], change=change)
    assert result.returncode == code, result.stderr
    return result.stderr


def test_more_ranks_than_the_machine_can_have_are_refused_at_once(job: Path) -> None:
    assert words_of(job, 2, "-np", "501") == (
        "hvdrun: -np 501 needs 1002 processes on this machine, and "
        f"{job / 'limit'} allows {ALLOWED}: lower -np, or name more hosts (-H)\n"
    )
    assert not (job / "facts").exists() and left_of(job) == []
    assert "needs" not in words_of(job, 0, "-np", "500")


def test_ranks_of_other_hosts_need_nothing_here(job: Path) -> None:
    assert "needs" not in words_of(job, 0, "-np", "502", "-H", "localhost:2,elsewhere:500")
    words = words_of(job, 2, "-np", "503", "-H", "localhost:501,elsewhere:2")
    assert "-np 503 needs 1002 processes on this machine" in words


def test_very_many_ranks_for_a_core_are_started_with_a_word(job: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    (job / "limit").write_text(f"{100 * cores}\n")
    assert words_of(job, 0, "-np", str(32 * cores)) == ""
    words = words_of(job, 0, "-np", str(32 * cores + 1))
    assert words.startswith(f"hvdrun: starting {32 * cores + 1} ranks on the {cores} cores of this")
    assert words.count("\n") == 1
