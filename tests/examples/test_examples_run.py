# SPDX-License-Identifier: Apache-2.0
"""The example programs as a user starts them, and the flights model on P ranks against one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from mpi import ROOT, Job, Result, run_ranks

EXAMPLES = ROOT / "estimator_examples"
FLIGHTS = EXAMPLES / "flights"


def has_estimator() -> bool:
    try:
        return bool(version("tensorflow-estimator"))
    except PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(not has_estimator(), reason="tf.estimator ended with 2.15")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the flights prepared, so that no run of a test takes the time."""
    folder = tmp_path_factory.mktemp("flights")
    prepare = "import sys, pathlib, data; data.load(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", prepare, str(folder)], cwd=FLIGHTS, check=True)
    return folder


def command(script: Path, data_dir: Path, *arguments: object) -> list[str]:
    return [sys.executable, str(script), f"--data-dir={data_dir}", *map(str, arguments)]


def check(result: Result) -> None:
    assert not result.timed_out and result.returncode == 0, result.text
    assert result.leftovers == [], result.text


@pytest.mark.parametrize("n", [2, 4])
def test_flights_on_many_ranks_equal_one(data_dir: Path, n: int) -> None:
    """50 steps of Adagrad with dense and sparse gradients, at most 1e-6 per variable."""
    result = run_ranks(command(FLIGHTS / "parity.py", data_dir, "--batch", 2048 // n), n, 300)
    check(result)
    found = re.findall(r"(?m)^([\d.e+-]+)  (\S+)$", result.outputs[0])
    names = {name for _, name in found}
    assert {"wide/weights", "embedding/tailnum", "dense_0/kernel", "dense_2/bias"} <= names
    # The comparison is no comparison if nothing was trained or one run was compared with itself.
    differences = [float(number) for number, _ in found]
    assert 0 < max(differences) <= 1e-6, result.text


def test_flights_report(data_dir: Path) -> None:
    launcher = [sys.executable, "-m", "hvd_tf.launch", "-np", "2"]
    program = command(FLIGHTS / "train.py", data_dir, "--steps=120", "--model-dir=model")
    with Job(program, 2, launcher=launcher) as job:
        result = job.wait(timeout_s=300)
        report = json.loads((job.directory / "cwd" / "model" / "report.json").read_text())
        checkpoints = list((job.directory / "cwd" / "model").glob("model.ckpt-120.index"))
    check(result)
    assert len(checkpoints) == 1
    assert report["workers"] == 2 and report["steps"] == 120
    assert report["auc"] > 0.6 and report["log_loss"] < 0.7
    assert report["examples_per_s"] == pytest.approx(report["steps_per_s"] * 2 * report["batch"])
    ratio = report["examples_per_s"] / report["one_worker_examples_per_s"]
    assert report["speed_up"] == pytest.approx(ratio)
    for words in ("2 worker(s)", "speed-up over 1 worker", "flights after 15 November: AUC"):
        assert result.text.count(words) == 1, result.text
    # Progress comes from one rank.
    assert "step 120/120" in result.text and "[1] step" not in result.text, result.text


@pytest.mark.parametrize("script", ["monitored_session.py", "plain_estimator.py"])
def test_short_scripts(data_dir: Path, script: str) -> None:
    result = run_ranks(command(EXAMPLES / script, data_dir, "--steps=400"), 2, 300)
    check(result)
    assert "200 steps on 2 rank(s)" in result.outputs[0], result.text
    assert result.outputs[1].strip() == "", result.text
