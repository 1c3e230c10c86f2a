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


# After one program of a rank has ended, the next may wait in MPI_Init for ever under Open MPI 5:
# PMIx answers a program that finalises, and only then notes that it has. On a busy machine it sees
# the end of the program in between, counts a process less, and no fence completes any more. So
# each program here is a job of one process to MPI, without memory that only mpirun would remove.
ALONE = "unset $(compgen -e | grep -E '^(PMIX|PRTE|OMPI_COMM)_'); export OMPI_MCA_btl=self; "


def test_two_programs_of_one_job() -> None:
    one = f"{sys.executable} {PROGRAM}"
    # The second has the same number of states. It dies in its first start, the first one does not.
    both = f"KILLED=0 {one} first && {one} second && {one} second"
    launcher = [HVDRUN, "-np", "1", "--restarts", "1"]
    with Job(["bash", "-c", ALONE + both], 1, launcher=launcher) as job:
        result = job.wait(120)
    assert result.returncode == 0 and result.leftovers == [], result.text
    begins = re.findall(r"(first|second) begins at (\d)", result.text)
    # In the second start the first program has nothing left to do.
    expected = [("first", 0), ("second", 0), ("first", 8), ("second", 4), ("second", 0)]
    assert begins == [(name, str(step)) for name, step in expected], result.text
    assert len(re.findall(r"ended with \[", result.text)) == 4, result.text


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


# Python's own limit, which leaves MPI's shared memory alone: it is there by then.
NO_ROOM = """
import resource, runpy, sys
import hvd_tf as hvd
hvd.init()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))
runpy.run_path(sys.argv[1])
"""


def test_a_commit_that_finds_no_room() -> None:
    launcher = [HVDRUN, "-np", "2", "--restarts", "1"]
    command = [sys.executable, "-c", NO_ROOM, PROGRAM]
    with Job(command, 2, env={"KILLED": "0"}, launcher=launcher) as job:
        result = job.wait(120)
    assert result.returncode == 0 and result.leftovers == [], result.text
    assert re.findall(r"begins at (\d)", result.text) == ["0", "0"], result.text
    assert result.text.count("a commit cannot be written to ") == 1, result.text
    assert len(re.findall(r"ended with \[", result.text)) == 1, result.text
