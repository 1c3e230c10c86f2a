# SPDX-License-Identifier: Apache-2.0
"""Programs that a rank starts, and that call hvd.init: they take themselves for the rank."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from cases import in_full
from mpi import Job

PROGRAM = str(Path(__file__).with_name("child_program.py"))
HVDRUN = [sys.executable, "-m", "hvd_tf.launch", "-np", "2"]


@pytest.mark.parametrize("launcher", ["hvdrun", pytest.param("mpirun", marks=in_full)])
def test_they_are_told_that_they_are_no_ranks(launcher: str) -> None:
    with Job(
        [sys.executable, PROGRAM], 2, launcher=HVDRUN if launcher == "hvdrun" else None
    ) as job:
        result = job.wait(180)
    text = result.text
    assert result.returncode == 0 and not result.timed_out and not result.leftovers, text
    assert text.count("done") == 2 and "never" not in text, text
    said = (
        r"RuntimeError: hvd\.init\(\): this process was started by rank 1 \(pid \d+\), which has "
    )
    assert len(re.findall(said, text)) == 2, text
    for child in ("a child", "spawned"):
        assert f"{child} ends with 1" in text, text
    assert "a job of its own ends with 0" in text and text.count("child 0 of 1") == 1, text
    assert "hvdrun ends with 0" in text and text.count(" of 2\n") == 2, text
