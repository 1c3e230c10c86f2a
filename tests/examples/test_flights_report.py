# SPDX-License-Identifier: Apache-2.0
"""The flights example's report: what a reader sees first, and pictures whose axes can be read.

Neither MPI nor TensorFlow is imported.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "estimator_examples" / "flights"))

import pictures
import report as reports
import workers


def evaluation(step: int, auc: float, log_loss: float) -> dict[str, Any]:
    return {"step": step, "auc": auc, "log_loss": log_loss, "accuracy": 0.75}


def made_up() -> reports.Report:
    """The report of a run on two workers whose second evaluation was the best."""
    rows = [(100, 0.70, 0.50), (200, 0.72, 0.49), (300, 0.71, 0.51)]
    curve = [
        {**evaluation(*row), "examples": row[0] * 2048, "seconds": 5.0 + row[0] / 10}
        for row in rows
    ]
    return {
        "workers": 2, "threads": 1, "batch": 1024, "steps": 300, "passes": 2.14, "seconds": 35.0,
        "steps_per_s": 40.0, "examples_per_s": 81_920.0, "curve": curve,
        "evaluated": "validation", "tested": "flights after 15 November",
        **evaluation(200, 0.7377, 0.5222),
        "test": {"best": evaluation(200, 0.7377, 0.5222), "end": evaluation(300, 0.7333, 0.5234)},
        "speeds": [
            {"workers": 1, "examples_per_s": 64_000.0}, {"workers": 2, "examples_per_s": 81_920.0}
        ],
        "one_worker_examples_per_s": 64_000.0, "speed_up": 1.28,
        "independent_examples_per_s": 115_200.0, "independent_speed_up": 1.8,
    }  # fmt: skip


def test_a_reader_sees_first_what_was_reached_and_how_fast() -> None:
    lines = reports.text(made_up()).splitlines()
    assert lines[:5] == [
        "test AUC  0.7377, log loss 0.5222, accuracy 0.7500: flights after 15 November",
        "          of step 200, the best of the evaluations; at the end, step 300: AUC 0.7333, "
        "log loss 0.5234",
        "speed     81,920 examples/s, 40 steps/s",
        "speed-up  1.28 over 1 worker without hvd_tf (64,000 examples/s)",
        "          1.80 is what 2 such workers reach here, each on its own (115,200 examples/s)",
    ]
    assert [line.split()[0] for line in lines if line.endswith("  best")] == ["200"]
    assert max(map(len, lines)) <= 110


def test_a_report_without_evaluations_or_comparison() -> None:
    report = made_up()
    for key in ("auc", "test", "speed_up", "independent_examples_per_s"):
        del report[key]
    lines = reports.text(report | {"curve": []}).splitlines()
    assert lines[0].startswith("speed ") and lines[1] == "" and len(lines) == 3


# Stands for train.py: waits until as many of it run as are wanted, and reports a speed.
TRAINING = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[-1].removeprefix("--model-dir="))
(folder / "runs").touch()
while len(list(folder.parent.glob("*/runs"))) < {together}:
    time.sleep(0.01)
if folder.name == "{failing}":
    sys.exit("out of memory")
if "{failing}":
    time.sleep(600)
pathlib.Path(__file__).with_name("cores." + folder.name).write_text(
    json.dumps(sorted(os.sched_getaffinity(0)))
)
(folder / "report.json").write_text(json.dumps({{"examples_per_s": 100 + int(folder.name)}}))
"""


def training(folder: Path, together: int, failing: str = "") -> Path:
    script = folder / "train.py"
    script.write_text(TRAINING.format(together=together, failing=failing))
    return script


def test_workers_on_their_own_run_at_the_same_time_and_count_all(tmp_path: Path) -> None:
    own = os.sched_getaffinity(0)
    cores = [own, {min(own)}, {max(own)}]
    assert workers.measure(training(tmp_path, 3), 1, 5, [], cores) == 100 + 101 + 102
    found = [json.loads((tmp_path / f"cores.{number}").read_text()) for number in range(3)]
    assert [set(each) for each in found] == cores
    assert os.sched_getaffinity(0) == own


def test_a_worker_that_fails_is_told_of_and_ends_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="failed:\nout of memory"):
        workers.measure(training(tmp_path, 2, failing="0"), 1, 5, [], [{0}, {0}])
    assert time.monotonic() - began < 300


@pytest.fixture
def pyplot() -> Any:
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_the_learning_curves_axes(pyplot: Any) -> None:
    _, axes = pyplot.subplots(2, sharex=True)
    pictures.learning_curve(made_up(), axes)
    assert [side.get_ylabel() for side in axes] == ["AUC (1 is best)", "log loss (nats)"]
    assert axes[1].get_xlabel() == "flights trained on (thousands)"
    assert axes[1].get_xlim()[0] == 0 and axes[1].get_xlim()[1] >= 614.4
    for side, key in zip(axes, ("auc", "log_loss")):
        low, high = side.get_ylim()
        shown = [*(row[key] for row in made_up()["curve"]), made_up()["test"]["best"][key]]
        assert low < min(shown) and max(shown) < high
    texts = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert texts == ["validation", "test, best on validation", "test, last step"]


def test_a_flat_curve_is_not_blown_up(pyplot: Any) -> None:
    report = made_up()
    del report["test"]
    for row in report["curve"]:
        row.update(evaluation(row["step"], 0.7 + row["step"] * 1e-6, 0.5 - row["step"] * 1e-6))
    _, axes = pyplot.subplots(2, sharex=True)
    pictures.learning_curve(report, axes)
    for side, span in zip(axes, (pictures.AUC_SPAN, pictures.LOG_LOSS_SPAN)):
        low, high = side.get_ylim()
        assert high - low >= 0.999 * span


def test_the_speeds_axes(pyplot: Any) -> None:
    _, axes = pyplot.subplots()
    pictures.speed_up(made_up(), axes)
    assert axes.get_ylabel() == "examples per second (thousands)"
    assert axes.get_ylim()[0] == 0 and axes.get_ylim()[1] > 115.2
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "1 worker\nwithout hvd_tf", "2 workers\nwith hvd_tf", "2 workers,\neach on its own"
    ]  # fmt: skip
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [64.0, 81.92, 115.2]
