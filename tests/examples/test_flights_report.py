# SPDX-License-Identifier: Apache-2.0
"""The flights example's report: what a reader sees first, and pictures whose axes can be read.

Neither MPI nor TensorFlow is imported.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "estimator_examples" / "flights"))

import pictures
import report as reports
import turns
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
        "speed-up  1.28 over 1 worker without hvd_tf, in turns with it: 81,920 and 64,000 "
        "examples/s",
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


# Stands for train.py: notes when its turns begin and end and on which cores, and tells of half a
# second for each.
TRAINING = """
import os, pathlib, sys, time
sys.path.insert(0, {flights!r})
import turns
words = dict(word[2:].split("=") for word in sys.argv[1:] if "=" in word)
assert words["steps"] == str(11 * turns.COUNT + 1) and words["lr"] == "7", words
own = "-".join(map(str, sorted(os.sched_getaffinity(0))))
if own == "{failing}":
    sys.exit("out of memory")
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
turn = turns.Turn(pathlib.Path(words["turns"]))
for _ in range(turns.COUNT):
    turn.wait()
    os.write(log, f"{{own}} begins\\n".encode())
    time.sleep(0.01)
    os.write(log, f"{{own}} ends\\n".encode())
    turn.tell(0.5)
turn.wait()
os.write(log, b"over\\n")
"""


def training(folder: Path, failing: str = "") -> Path:
    script = folder / "train.py"
    flights, log = str(Path(workers.__file__).parent), str(folder / "log")
    script.write_text(TRAINING.format(flights=flights, log=log, failing=failing))
    return script


def test_one_setup_trains_at_a_time_and_its_trainings_add_up(tmp_path: Path) -> None:
    own = os.sched_getaffinity(0)
    setups = [workers.Setup(1, [own]), workers.Setup(1, [{min(own)}, {max(own)}])]
    script = training(tmp_path)
    found = list(workers.take_turns(setups, script, 11, ["--lr=7"]))
    assert found == [[20.0, 40.0]] * turns.COUNT
    assert os.sched_getaffinity(0) == own
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[-3:] == ["over"] * 3  # nobody ends while another has its turn
    alone = "-".join(map(str, sorted(own)))
    inside = 0
    for line in lines[:-3]:
        who, what = line.split(" ")
        if who == alone:
            assert inside == 0 or (what, inside) == ("ends", -1), lines
            inside = -1 if what == "begins" else 0
        else:
            inside += 1 if what == "begins" else -1
            assert 0 <= inside <= 2, lines


def test_a_training_that_fails_is_told_of_and_ends_the_others(tmp_path: Path) -> None:
    own = os.sched_getaffinity(0)
    setups = [workers.Setup(1, [own]), workers.Setup(1, [{min(own)}])]
    script = training(tmp_path, failing=str(min(own)))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="failed:\nout of memory"):
        list(workers.take_turns(setups, script, 11, ["--lr=7"]))
    assert time.monotonic() - began < 300


def test_a_training_ends_when_nobody_takes_the_times_any_more(tmp_path: Path) -> None:
    caller = turns.Caller(tmp_path)
    turn = turns.Turn(tmp_path)
    caller.go()
    turn.wait()
    caller.close()
    with pytest.raises(SystemExit, match="has ended"):
        turn.wait()


def test_all_numbers_of_workers_that_a_host_can_run_are_compared() -> None:
    assert workers.counts(2, 2) == [1, 2]
    assert workers.counts(6, 6) == [1, 2, 4, 6]
    assert workers.counts(8, 4) == [1, 2, 4]


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
