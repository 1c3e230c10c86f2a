# SPDX-License-Identifier: Apache-2.0
"""A rank that MPI would start as a job of its own is refused by init, and leaves no files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mpi import Job, is_open_mpi


@pytest.mark.skipif(not is_open_mpi(), reason="MPICH leaves nothing behind")
@pytest.mark.parametrize(
    "launched",
    [{"OMPI_COMM_WORLD_SIZE": "2"}, {"PMI_SIZE": "2", "PMI_RANK": "0"}],
    ids=["Open MPI", "MPICH"],
)
def test_a_refused_rank_leaves_nothing(tmp_path: Path, launched: dict[str, str]) -> None:
    shm = {f"OMPI_MCA_{part}_sm_backing_directory": str(tmp_path) for part in ("btl", "osc")}
    command = [sys.executable, "-c", "import hvd_tf; hvd_tf.init()"]
    with Job(command, 1, {**launched, **shm}, launcher=[]) as job:
        result = job.wait(60)
        # Directories too: Open MPI's own end leaves some, and a segment.
        left = [*(job.directory / "tmp").rglob("*"), *tmp_path.rglob("*")]
    assert result.returncode == 1 and result.leftovers == [], result.text
    variable = next(iter(launched))
    words = f"The launcher set {variable}=2, but the MPI library (Open MPI v"
    assert words in result.text and "sees 1 rank. Start the job with" in result.text
    assert left == []
