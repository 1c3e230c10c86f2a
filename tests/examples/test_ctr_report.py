# SPDX-License-Identifier: Apache-2.0
"""The weak-scaling report of the CTR example. Neither MPI nor TensorFlow is imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "estimator_examples" / "ctr"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "estimator_examples" / "flights"))

import scaling_picture
import scaling_report


def made_up() -> dict[str, Any]:
    """In the second round the machine was twice as slow, but for one way."""
    times = {
        "alone": (20.0, 40.0, 21.0),
        "independent": (20.0, 44.0, 22.0),
        "hvd_tf": (25.0, 50.0, 30.0),
        "horovod.tensorflow": (40.0, 60.0, 42.0),
    }
    runs = {
        way: [{"step_ms": time, "input_ms": time / 100} for time in of_way]
        for way, of_way in times.items()
    }
    for run, payload in zip(runs["hvd_tf"], (900.0, 1000.0, 1000.0)):
        run["sent"] = {
            "payload_bytes": payload, "header_bytes": 64.0, "control_bytes": 50.0, "collectives": 3
        }  # fmt: skip
    settings = {"ranks": 2, "model": "deep", "ids": 1000, "dimension": 16, "batch": 2048}
    return scaling_report.reported({**settings, "zipf": 1.05, "steps": 100}, runs)


def test_ratios_and_differences_are_those_of_rounds() -> None:
    report = made_up()
    assert report["rounds"] == 3 and report["input_ms"] == 0.21
    ours = report["ways"]["hvd_tf"]
    assert ours["step_ms"] == 30 and ours["steps_per_s"] == pytest.approx(1000 / 30)
    assert ours["efficiency"] == pytest.approx(0.8)  # of 0.8, 0.8 and 0.7
    assert ours["of_independent"] == pytest.approx(0.8)  # of 0.8, 0.88 and 0.733
    assert ours["exposed_ms"] == pytest.approx(6)  # of 5, 6 and 8
    assert ours["sent"]["payload_bytes"] == 1000
    assert report["ways"]["horovod.tensorflow"]["efficiency"] == pytest.approx(0.5)
    assert "exposed_ms" not in report["ways"]["independent"]


def test_what_a_reader_sees() -> None:
    lines = scaling_report.text(made_up()).splitlines()
    assert max(map(len, lines)) <= 150
    assert lines[0].startswith("deep, 1,000 x 16, batch 2048 per rank, Zipf 1.05, 1 thread each")
    (ours,) = [line for line in lines if line.startswith("2 ranks, hvd_tf")]
    assert ours.split()[3:] == ["30.0", "33.3", "0.80", "0.80", "6.0"]
    (sent,) = [line for line in lines if line.startswith("hvd_tf: each rank sends 1,000 bytes")]
    assert "64 in headers" in sent and "50 of the control plane" in sent
    assert lines[-1] == "the input alone: 0.21 ms a batch"


def test_the_pictures_axes() -> None:
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot

    report = made_up()
    labels = {way: scaling_report.label(report, way) for way in report["ways"]}
    _, axes = pyplot.subplots()
    scaling_picture.paint(report, labels, axes)
    assert axes.get_ylabel() == "milliseconds per step"
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 42
    heights = [bar.get_height() for bar in axes.patches]
    assert heights[:4] == [21.0, 22.0, 24.0, 22.0] and heights[4:] == [0.0, 0.0, 6.0, 20.0]
    assert [label.get_text() for label in axes.get_xticklabels()][2] == "2 ranks,\nhvd_tf"
    pyplot.close("all")
