# SPDX-License-Identifier: Apache-2.0
"""The example programs as a user starts them, and the flights model on P ranks against one."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases import in_full, needs_estimator
from mpi import ROOT, Result, run_ranks

EXAMPLES = ROOT / "estimator_examples"
FLIGHTS = EXAMPLES / "flights"
FEWER = "--one-in=8"  # flights. The runs share the shards that the first one writes.
REPORTED = (FEWER, "--batch=512")
# TensorFlow 2.21 writes them before it can be told not to.
OF_TENSORFLOW = re.compile(r"(?m)^(WARNING: All log messages before absl::|I0000 ).*$")

Report = dict[str, Any]

pytestmark = needs_estimator


def command(script: Path, data_dir: Path, *arguments: object) -> list[str]:
    return [sys.executable, str(script), f"--data-dir={data_dir}", *map(str, arguments)]


def check(result: Result) -> None:
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text


def train(
    data_dir: Path, n: int, *arguments: object, model_dir: Path | None = None
) -> tuple[Result, Report, Path]:
    """Runs train.py under hvdrun. It must end well. Returns the report and the model's folder."""
    launcher = [sys.executable, "-m", "hvd_tf.launch", "-np", str(n)]
    model_dir = model_dir or Path(tempfile.mkdtemp(dir=data_dir))
    program = command(FLIGHTS / "train.py", data_dir, f"--model-dir={model_dir}", *arguments)
    result = run_ranks(program, n, 300, launcher=launcher)
    check(result)
    return result, json.loads((model_dir / "report.json").read_text()), model_dir


def check_pictures(report: Report, model_dir: Path, *wanted: str) -> None:
    """Each picture is a PNG file. Without matplotlib there are no pictures."""
    assert report["pictures"] == (list(wanted) if find_spec("matplotlib") else [])
    for name in report["pictures"]:
        assert (model_dir / name).read_bytes().startswith(b"\x89PNG\r\n"), name


@pytest.mark.parametrize("n", [2, pytest.param(4, marks=in_full)])
def test_flights_on_many_ranks_equal_one(data_dir: Path, n: int) -> None:
    """50 steps of Adagrad with dense and sparse gradients, at most 1e-6 per variable."""
    # So many flights that 50 steps are less than one pass.
    program = command(FLIGHTS / "parity.py", data_dir, "--one-in=2", "--batch", 2048 // n)
    result = run_ranks(program, n, 300)
    check(result)
    found = re.findall(r"(?m)^([\d.e+-]+)  (\S+)$", result.outputs[0])
    names = {name for _, name in found}
    assert {"wide/weights", "embedding/tailnum", "dense_0/kernel", "dense_2/bias"} <= names
    # The comparison is no comparison if nothing was trained or one run was compared with itself.
    differences = [float(number) for number, _ in found]
    assert 0 < max(differences) <= 1e-6, result.text


@pytest.fixture(scope="module")
def reported(data_dir: Path) -> tuple[Result, Report, Path]:
    return train(data_dir, 2, *REPORTED, "--steps=120", "--evaluations=2")


def test_flights_report(reported: tuple[Result, Report, Path]) -> None:
    result, report, model_dir = reported
    assert len(list(model_dir.glob("model.ckpt-120.index"))) == 1
    assert report["workers"] == 2 and report["steps"] == 120
    assert [(row["step"], row["examples"]) for row in report["curve"]] == [
        (60, 60 * 1024),
        (120, 120 * 1024),
    ]
    assert 0 < report["curve"][0]["seconds"] < report["curve"][1]["seconds"]
    check_test(report, model_dir)
    assert report["examples_per_s"] == pytest.approx(report["steps_per_s"] * 2 * report["batch"])
    one, two = report["speeds"]
    assert (one["workers"], two["workers"]) == (1, 2)
    for speed in (one, two):  # medians of five turns, and not of the one that warms up
        each = speed["turns_steps_per_s"]
        assert len(each) == 5 and min(each) > 0
        examples = sorted(each)[2] * speed["workers"] * report["batch"]
        assert speed["examples_per_s"] == pytest.approx(examples)
    assert one["examples_per_s"] == report["one_worker_examples_per_s"]
    ratio = two["examples_per_s"] / one["examples_per_s"]
    assert report["speed_up"] == pytest.approx(ratio)
    independent = report["independent_examples_per_s"]
    assert independent == pytest.approx(
        sorted(report["independent_turns_steps_per_s"])[2] * report["batch"]
    )
    assert report["independent_speed_up"] == pytest.approx(
        independent / report["one_worker_examples_per_s"]
    )
    for words in (f"test AUC  {report['auc']:.4f}, ", "speed     ", "speed-up  "):
        assert result.text.count(words) == 1, result.text
    # Progress comes from one rank.
    assert "step 120/120" in result.text and "[1] step" not in result.text, result.text
    check_pictures(report, model_dir, "learning_curve.png", "speed_up.png")


def check_test(report: Report, model_dir: Path) -> None:
    """The test part was evaluated with the weights that the validation part found best."""
    best = max(report["curve"], key=lambda row: row["auc"])
    tested = report["test"]
    assert tested["best"]["step"] == best["step"] and tested["end"]["step"] == report["steps"]
    kept = sorted(path.name for path in (model_dir / "export" / "best").glob("model.ckpt-*.index"))
    assert kept == [f"model.ckpt-{best['step']}.index"]
    for key in ("auc", "log_loss", "accuracy"):
        assert report[key] == tested["best"][key] != best[key]  # of other flights
    assert report["auc"] > 0.65 and report["log_loss"] < 0.6


def test_flights_go_on_from_a_checkpoint(
    data_dir: Path, reported: tuple[Result, Report, Path]
) -> None:
    _, first, model_dir = reported
    more = (*REPORTED, "--no-baseline", "--steps=160", "--evaluations=4")
    _, second, _ = train(data_dir, 2, *more, model_dir=model_dir)
    assert [row["step"] for row in second["curve"]] == [60, 120, 160]
    assert second["curve"][:2] == first["curve"]
    check_test(second, model_dir)


def test_flights_as_a_stream(data_dir: Path) -> None:
    words = ("--stream", "--one-in=20", "--batch=500", "--block=8000")
    result, report, model_dir = train(data_dir, 2, *words)
    flights = 16_368  # one in 20 of 327,346, the first among them
    # The third block is smaller than the others. It is evaluated, and then trained on as well.
    assert [row["examples"] for row in report["curve"]] == [8000, 16_000]
    assert report["steps"] == -(-flights // 1000)
    days = [day for row in report["curve"] for day in (row["from"], row["to"])]
    assert days == sorted(days) and days[0] > "01-31" and days[-1] == "12-31"
    assert report["auc"] > 0.55, result.text
    assert "dropped" not in result.text
    check_pictures(report, model_dir, "learning_curve.png")


@pytest.mark.parametrize("script", ["monitored_session.py", "plain_estimator.py"])
def test_short_scripts(data_dir: Path, script: str) -> None:
    result = run_ranks(command(EXAMPLES / script, data_dir, "--steps=400"), 2, 300)
    check(result)
    assert "200 steps on 2 rank(s)" in result.outputs[0], result.text
    assert OF_TENSORFLOW.sub("", result.outputs[1]).strip() == "", result.text
