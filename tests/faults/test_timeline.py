# SPDX-License-Identifier: Apache-2.0
"""A rank is killed: the timeline has all ranks' events up to a second before, and loads."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from cases import in_full
from mpi import Job

from hvd_tf.timeline.trace_file import read

PROGRAM = Path(__file__).with_name("timeline_program.py")
LOST_S = 1.0


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=in_full)])
def test_a_rank_is_killed(tmp_path: Path, victim: int) -> None:
    file = tmp_path / "timeline.json"
    hvdrun = [sys.executable, "-m", "hvd_tf.launch", "-np", "2", "--timeline-filename", str(file)]
    with Job([sys.executable, str(PROGRAM)], 2, launcher=hvdrun) as job:
        job.wait_for(f"[{victim}] under way")
        time.sleep(1.5)
        killed_s = time.monotonic()
        os.kill(job.pid(victim), signal.SIGKILL)
        result = job.wait(60)
    assert result.returncode == 137, result.text
    trace = read(file)
    assert trace.ranks == [0, 1] and not trace.is_complete and trace.dropped == 0
    for rank in (0, 1):
        asked_s = [
            int(found[1]) / 1e3
            for tensor in trace.tensors
            if tensor.rank == rank and (found := re.fullmatch(r"at (\d+)", tensor.name))
        ]
        assert len(asked_s) > 100
        assert killed_s - max(asked_s) < LOST_S
