# SPDX-License-Identifier: Apache-2.0
"""Random steps on several ranks against NumPy, for every way in which ranks are connected.

HVD_TEST_STRESS_S=300 goes on for so many seconds in each case, and tries further cases. A failure
names its seed. HVD_TEST_STRESS_SEED=7 repeats that one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from mpi import run_ranks

PROGRAM = Path(__file__).with_name("stress_program.py")
SECONDS = float(os.environ.get("HVD_TEST_STRESS_S", "0"))
SHORT_S = 4.0
# Ranks, hosts, knobs.
CASES = [
    (2, None, {"HVD_SHM_BYTES": "65536", "HVD_SHM_CHUNK_BYTES": "1024", "HVD_CACHE_ENTRIES": "3"}),
    (3, None, {"HVD_SHM": "0", "HVD_FUSION_BYTES": "0"}),
    (4, "2x2", {"HVD_CACHE_ENTRIES": "0", "HVD_BATCHES_IN_FLIGHT": "1"}),
]
LONG_CASES = [
    (2, None, {}),
    (2, "2x1", {}),
    (3, None, {"HVD_FUSION_BYTES": "0", "HVD_BATCHES_IN_FLIGHT": "1"}),
    (4, None, {}),
    (4, "2x2", {"HVD_SHM_BYTES": "65536", "HVD_SHM_CHUNK_BYTES": "1024"}),
    (4, None, {"HVD_SHM": "0", "HVD_CACHE_ENTRIES": "3", "HVD_CHUNK_BYTES": "1024"}),
    (8, None, {}),
    (8, "4x2", {}),
    (8, None, {"HVD_SHM": "0"}),
]
if SECONDS:
    CASES += LONG_CASES


def name_of(case: object) -> str:
    if isinstance(case, dict):
        return ",".join(f"{name[4:].lower()}={value}" for name, value in case.items()) or "defaults"
    return str(case or "1host")


@pytest.mark.parametrize(("n", "hosts", "env"), CASES, ids=name_of)
def test_random_steps(n: int, hosts: str | None, env: dict[str, str]) -> None:
    # The suite's own are the same every time.
    seed = os.environ.get("HVD_TEST_STRESS_SEED", str(time.time_ns() % 10**6) if SECONDS else "1")
    command = [sys.executable, str(PROGRAM), seed, str(SECONDS or SHORT_S)]
    result = run_ranks(command, n, timeout_s=120 + 2 * SECONDS, env=env, hosts=hosts)
    assert not result.timed_out and result.returncode == 0, f"seed {seed}\n{result.text}"
    assert all("right:" in output for output in result.outputs), f"seed {seed}\n{result.text}"
    assert result.leftovers == [], f"seed {seed}\n{result.text}"
