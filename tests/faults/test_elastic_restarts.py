# SPDX-License-Identifier: Apache-2.0
"""hvdrun --restarts: an elastic training goes on from the last commit of the start before."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
from mpi import Job

PROGRAM = str(Path(__file__).with_name("elastic_program.py"))
HVDRUN = str(Path(sys.executable).with_name("hvdrun"))


def test_a_killed_rank() -> None:
    launcher = [HVDRUN, "-np", "2", "--restarts", "1"]
    with Job([sys.executable, PROGRAM], 2, launcher=launcher) as job:
        result = job.wait(120)
    assert result.returncode == 0 and result.leftovers == [], result.text
    # It dies in step 5, after the commit of step 4.
    assert re.findall(r"begins at (\d)", result.text) == ["0", "0", "4", "4"], result.text
    (end,) = re.findall(r"ended with \[(.*)\]", result.text)
    # Eight steps, each with the average of 1 and 2 times the weights.
    np.testing.assert_allclose([float(x) for x in end.split(",")], (1 - 0.15) ** 8, rtol=1e-6)
