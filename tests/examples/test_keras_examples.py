# SPDX-License-Identifier: Apache-2.0
"""The Keras examples: fit and the loop find the same model, on two ranks and on one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from mpi import ROOT, run_ranks

EXAMPLES = ROOT / "estimator_examples"
SMALL = ("--one-in=60", "--passes=2")


def figures(data_dir: Path, script: str, ranks: int) -> list[float]:
    """AUC, log loss and accuracy of the test part."""
    program = [sys.executable, str(EXAMPLES / "keras" / script), f"--data-dir={data_dir}", *SMALL]
    result = run_ranks([*program, f"--batch={2048 // ranks}"], ranks, 200)
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    (line,) = re.findall(r"(?m)^test (AUC .*): flights after", result.outputs[0])
    assert all("AUC" not in output for output in result.outputs[1:])
    return [float(number) for number in re.findall(r"\d\.\d+", line)]


def test_fit_and_loop(data_dir: Path) -> None:
    fit, loop = figures(data_dir, "fit.py", 2), figures(data_dir, "loop.py", 2)
    assert fit == pytest.approx(loop, abs=2e-4)
    assert fit[0] > 0.6


def test_uneven_loop(data_dir: Path) -> None:
    """Rank 0 has a fourth of the flights. It ends with the steps and the model of rank 1."""
    program = [sys.executable, str(EXAMPLES / "uneven_loop.py"), f"--data-dir={data_dir}"]
    result = run_ranks([*program, "--one-in=20", "--epochs=2"], 2, 200)
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    fewer, more = (
        int(re.findall(rf"(?m)^rank {rank}: (\d+) batches", output)[0])
        for rank, output in enumerate(result.outputs)
    )
    assert 0 < fewer < more / 2
    (found,) = re.findall(
        r"(?m)^(\d+) steps on 2 rank\(s\), held-out loss (.*)$", result.outputs[0]
    )
    assert int(found[0]) == more and 0 < float(found[1]) < 0.69
