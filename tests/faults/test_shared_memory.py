# SPDX-License-Identifier: Apache-2.0
"""Shared memory that a job cannot have, or that its ranks disagree about."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cases import in_full
from mpi import Result, run_ranks

PROGRAM = """
import os, sys
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
if len(sys.argv) > 1:
    os.environ["HVD_SHM_CHUNK_BYTES"] = str(4096 << rank)
import numpy as np
import hvd_tf as hvd
try:
    hvd.init()
except ValueError as error:
    print("refused:", error)
    sys.exit()
for count in (1, 3000, 700000):
    mine = np.arange(count, dtype=np.float64) * (rank + 1)
    total = hvd.allreduce(mine, op=hvd.Sum, name=f"sum{count}").numpy()
    factor = sum(range(1, hvd.size() + 1))
    np.testing.assert_array_equal(total, np.arange(count, dtype=np.float64) * factor)
print("right")
"""


def run(tmp_path: Path, n: int, *arguments: str, **env: str) -> Result:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = run_ranks([sys.executable, str(program), *arguments], n, timeout_s=120, env=env)
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    return result


@pytest.mark.parametrize(
    ("n", "env", "warnings"),
    [
        # test_stress.py does it with random calls.
        pytest.param(2, {"HVD_SHM": "0"}, 0, marks=in_full),
        # More than there is: it goes over MPI, and one rank says so.
        (2, {"HVD_SHM_BYTES": str(10**12)}, 1),
        pytest.param(2, {"HVD_SHM_BYTES": str(10**12), "HVD_LOG_LEVEL": "3"}, 0, marks=in_full),
        # Little: one chunk after another, as in test_stress.py.
        pytest.param(3, {"HVD_SHM_BYTES": "65536"}, 0, marks=in_full),
    ],
)
def test_numbers_are_right_with_and_without(
    tmp_path: Path, n: int, env: dict[str, str], warnings: int
) -> None:
    result = run(tmp_path, n, **env)
    assert all("right" in output for output in result.outputs), result.text
    assert result.text.count("No shared memory (rank 0: ") == warnings, result.text


def test_ranks_that_disagree_are_all_refused(tmp_path: Path) -> None:
    result = run(tmp_path, 2, "differ")
    for output in result.outputs:
        assert "refused: HVD_SHM, " in output and "8192 on rank 1" in output, result.text
