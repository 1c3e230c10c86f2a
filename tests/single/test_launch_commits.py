# SPDX-License-Identifier: Apache-2.0
"""hvdrun --restarts: whether it has a directory for the commits of hvd.elastic."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import facts, fake_mpirun, run, stop_left

OWN = socket.gethostname()
# An address that belongs to no host, and needs no name server.
NODE = "203.0.113.7"
NO_COMMITS = (
    f"hvdrun: rank 0 is on {NODE}, so hvd.elastic keeps no commits for a restart and begins anew: "
    "set HVD_ELASTIC_DIR to a directory that all hosts share\n"
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


@pytest.mark.parametrize(
    ("hosts", "chosen", "said"),
    [
        (f"{NODE}:1,{OWN}:1", False, NO_COMMITS),
        (f"{OWN}:1,{NODE}:1", True, ""),
        (f"127.0.0.2:1,{NODE}:1", True, ""),  # this machine by an address
        ("localhost:2", True, ""),
    ],
)
def test_commits_are_where_rank_0_is(job: Path, hosts: str, chosen: bool, said: str) -> None:
    fake_mpirun(job, "note(env=dict(os.environ))")
    options = ["-np", "2", "-H", hosts, "--restarts", "1", "true"]
    result = run(job, options, {"HVD_ELASTIC_DIR": None})
    assert (result.returncode, result.stderr) == (0, said)
    assert ("HVD_ELASTIC_DIR" in facts(job)["env"]) == chosen


def test_commits_are_where_the_user_has_said(job: Path) -> None:
    fake_mpirun(job, "note(env=dict(os.environ))")
    options = ["-np", "2", "-H", f"{NODE}:1,{OWN}:1", "--restarts", "1", "true"]
    result = run(job, options, {"HVD_ELASTIC_DIR": "/shared"})
    assert (result.returncode, result.stderr) == (0, "")
    assert facts(job)["env"]["HVD_ELASTIC_DIR"] == "/shared"
