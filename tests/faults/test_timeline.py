# SPDX-License-Identifier: Apache-2.0
"""A rank is killed: the timeline has all ranks' events, and loads."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from cases import in_full
from mpi import Job

from hvd_tf.timeline.errors import TimelineError
from hvd_tf.timeline.trace_file import read

PROGRAM = Path(__file__).with_name("timeline_program.py")
STEPS = [f"step {count}" for count in range(200)]


def steps_of(file: Path, rank: int) -> list[str]:
    """Those in the file, which may not have begun."""
    try:
        return [tensor.name for tensor in read(file).tensors if tensor.rank == rank]
    except (FileNotFoundError, TimelineError):
        return []


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=in_full)])
def test_a_rank_is_killed(tmp_path: Path, victim: int) -> None:
    file = tmp_path / "timeline.json"
    hvdrun = [sys.executable, "-m", "hvd_tf.launch", "-np", "2", "--timeline-filename", str(file)]
    with Job([sys.executable, str(PROGRAM)], 2, launcher=hvdrun) as job:
        for rank in (0, 1):
            job.wait_for(f"[{rank}] at rest")
        # Written while the job goes on, and not because of anything that it does.
        deadline = time.monotonic() + 60
        while any(steps_of(file, rank) != STEPS for rank in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.kill(job.pid(victim), signal.SIGKILL)
        result = job.wait(60)
    assert result.returncode == 137, result.text
    trace = read(file)
    assert trace.ranks == [0, 1] and not trace.is_complete and trace.dropped == 0
    assert [steps_of(file, rank) for rank in (0, 1)] == [STEPS, STEPS]
