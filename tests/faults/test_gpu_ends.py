# SPDX-License-Identifier: Apache-2.0
"""A rank ends while others wait for its GPU: they are told which.

On the GPU that is made up. With HVD_TEST_GPU=real HVD_TEST_NCCL=1 on the machine's own, which the
ranks share, by NCCL.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from mpi import Job

PROGRAM = Path(__file__).with_name("gpu_program.py")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("leave", "'lost' cannot complete: rank 1 ({host}) has left: "),
        ("stop", "'lost' cannot complete: rank 1 ({host}) failed: it has not answered"),
    ],
)
def test_the_others_are_told(how: str, words: str) -> None:
    env = {"HVD_STALL_WARNING_S": "2", "HVD_STALL_SHUTDOWN_S": "5"}
    with Job([sys.executable, str(PROGRAM), how], 2, env) as job:
        result = job.wait(90)
    assert not result.timed_out, result.text
    assert f"now {how}" in result.outputs[1], result.text
    told = [line for line in result.outputs[0].splitlines() if line.startswith("told: ")]
    assert len(told) == 1, result.text
    assert words.format(host=os.uname().nodename) in told[0], result.text
    assert result.leftovers == [], result.text
