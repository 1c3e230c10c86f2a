# SPDX-License-Identifier: Apache-2.0
"""Two runs of the flights Estimator with one seed end with the same bits, whatever the timing."""

from __future__ import annotations

import functools
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from mpi import run_ranks

PROGRAM = Path(__file__).with_name("repeat_program.py")
DELAYS = {"HVD_TEST_DELAY_SEED": "7"}
CASES = [
    (2, {**DELAYS, "HVD_AUTOTUNE": "1"}),
    (3, {**DELAYS, "HVD_AUTOTUNE": "1"}),
    (4, {**DELAYS, "HVD_AUTOTUNE": "1"}),
    # Other tensors travel together, in other pieces.
    (3, {"HVD_FUSION_BYTES": "20000", "HVD_SHM_PIECE_BYTES": "4096"}),
]


def has_estimator() -> bool:
    try:
        return bool(version("tensorflow-estimator"))
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not has_estimator(), reason="needs tensorflow-estimator")


def trained(n: int, **env: str) -> dict[str, str]:
    """Name and mark of each variable in the last checkpoint."""
    # One thread: in which order TensorFlow's own kernels add in several is not ours to promise.
    command = [sys.executable, str(PROGRAM), "--threads=1"]
    result = run_ranks(command, n, timeout_s=120, env=env)
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    found = dict(re.findall(r"(?m)^variable (\S+) ([0-9a-f]{64})$", result.outputs[0]))
    assert {"wide/weights", "dense_0/kernel", "embedding/tailnum/Adagrad"} <= set(found)
    return found


@functools.cache
def undisturbed(n: int) -> dict[str, str]:
    return trained(n)


@pytest.mark.parametrize(("n", "change"), CASES)
def test_the_same_bits(n: int, change: dict[str, str]) -> None:
    assert trained(n, **change) == undisturbed(n)


def test_another_seed_gives_other_bits() -> None:
    other = trained(2, HVD_TEST_TRAINING_SEED="2")
    same = [name for name, mark in undisturbed(2).items() if other[name] == mark]
    assert same == ["global_step"]
