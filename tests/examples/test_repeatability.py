# SPDX-License-Identifier: Apache-2.0
"""Runs of the flights Estimator with one seed end with the same bits, whatever the timing.

TensorFlow takes as long to import as a training, so that one job does several.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from cases import in_full, needs_estimator
from mpi import run_ranks

PROGRAM = Path(__file__).with_name("repeat_program.py")
Settings = dict[str, str]
Marks = dict[str, str]  # of each variable in the last checkpoint
UNDISTURBED: Settings = {}
DELAYED = {"HVD_TEST_DELAY_SEED": "7", "HVD_AUTOTUNE": "1"}
# Other tensors travel together, in other chunks.
SMALL_CHUNKS = {"HVD_FUSION_BYTES": "20000", "HVD_SHM_CHUNK_BYTES": "4096"}
OTHER_SEED = {"HVD_TEST_TRAINING_SEED": "2"}

pytestmark = needs_estimator


def trained(n: int, *settings: Settings) -> list[Marks]:
    """In one job of n ranks, a training with each of the settings."""
    command = [sys.executable, str(PROGRAM), json.dumps(settings)]
    result = run_ranks(command, n, timeout_s=90 + 30 * len(settings))
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    found: list[Marks] = [{} for _ in settings]
    line = r"(?m)^variable (\d+) (\S+) ([0-9a-f]{64})$"
    for number, name, mark in re.findall(line, result.outputs[0]):
        found[int(number)][name] = mark
    for marks in found:
        assert {"wide/weights", "dense_0/kernel", "embedding/tailnum/Adagrad"} <= set(marks)
    return found


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=in_full) for n in (2, 4))])
def test_the_same_bits_in_one_job(n: int) -> None:
    undisturbed, *others = trained(n, UNDISTURBED, DELAYED, SMALL_CHUNKS)
    assert others == [undisturbed, undisturbed]


@in_full  # with two ranks, sums have one order
def test_the_same_bits_in_two_jobs() -> None:
    undisturbed, other_seed = trained(2, UNDISTURBED, OTHER_SEED)
    assert trained(2, DELAYED) == [undisturbed]
    # And a difference would be seen.
    same = [name for name, mark in undisturbed.items() if other_seed[name] == mark]
    assert same == ["global_step"]
