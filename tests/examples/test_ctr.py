# SPDX-License-Identifier: Apache-2.0
"""The CTR example's programs as a user starts them."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases import in_full, needs_estimator
from mpi import ROOT, Result, run_ranks

CTR = ROOT / "estimator_examples" / "ctr"

pytestmark = needs_estimator


def train(folder: Path, n: int, *arguments: object) -> tuple[Result, dict[str, Any]]:
    """Runs train.py under hvdrun with a hard limit. It must end well. Returns the report, too."""
    launcher = [sys.executable, "-m", "hvd_tf.launch", "-np", str(n)]
    command = [sys.executable, str(CTR / "train.py"), f"--data-dir={folder}", *map(str, arguments)]
    model = folder / "model"
    result = run_ranks([*command, f"--model-dir={model}"], n, 300, launcher=launcher)
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    return result, json.loads((model / "report.json").read_text())


def test_logs_of_different_lengths_are_read_to_their_ends(tmp_path: Path) -> None:
    small = ("--batch=64", "--ids=5000", "--held-out=6400", "--lr=0.01", "--model=wide_deep")
    batches = [100, 120, 90, 0]
    stream = ("--stream", "--batches=" + ",".join(map(str, batches)))
    result, report = train(tmp_path, 4, *small, *stream)
    assert report["batches"] == batches and report["workers"] == 4
    assert report["steps"] == max(batches)
    assert "100 + 120 + 90 + 0 = 310 in 120 steps" in result.text
    assert 0.7 < report["auc"] < report["ceiling"] < 0.9, result.text


@pytest.mark.parametrize("model", ["deep", pytest.param("canned", marks=in_full)])
def test_weak_scaling(model: str, tmp_path: Path) -> None:
    """Two ranks share gradients, and two processes do not."""
    small = ("--batch=64", "--ids=5000", "--steps=10", "--warm-up=5", "--rounds=1")
    small += (f"--model={model}",)
    command = [sys.executable, str(CTR / "scaling.py"), f"--data-dir={tmp_path}", *small]
    result = run_ranks([*command, f"--out={tmp_path}"], 1, 300, launcher=[])
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text
    report = json.loads((tmp_path / "scaling.json").read_text())
    assert list(report["ways"]) == ["alone", "independent", "hvd_tf"]
    assert all(way["step_ms"] > 0 for way in report["ways"].values())
    assert [way for way, row in report["ways"].items() if "sent" in row] == ["hvd_tf"]
    # The dense layers alone are half a megabyte, of which two ranks send each other a half.
    sent = report["ways"]["hvd_tf"]["sent"]
    assert sent["payload_bytes"] > (26 * 16 + 13) * 256 * 4 and sent["collectives"] >= 1
    assert 0 < report["input_ms"] < report["ways"]["alone"]["step_ms"]
    pictures = ["scaling.png"] if find_spec("matplotlib") else []
    assert report["pictures"] == pictures
    for name in pictures:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n")
