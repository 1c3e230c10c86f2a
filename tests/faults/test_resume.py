# SPDX-License-Identifier: Apache-2.0
"""A job that is killed at step 60-odd of 100 and started again ends as if nothing had happened."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from mpi import Result, run_ranks

PROGRAM = Path(__file__).with_name("resume_program.py")


def has_estimator() -> bool:
    try:
        return bool(version("tensorflow-estimator"))
    except PackageNotFoundError:
        return False


needs_estimator = pytest.mark.skipif(not has_estimator(), reason="tf.estimator ended with 2.15")
KINDS = ["last_step", "num_steps", "own_loop", pytest.param("estimator", marks=needs_estimator)]


def train(kind: str, model_dir: Path, *options: str, ranks: int = 2) -> Result:
    command = [sys.executable, str(PROGRAM), kind, str(model_dir), *options]
    return run_ranks(command, ranks, timeout_s=120)


def saved_step(model_dir: Path) -> int:
    """The global step of the newest checkpoint."""
    text = (model_dir / "checkpoint").read_text()
    match = re.search(r'^model_checkpoint_path: ".*-(\d+)"', text, re.MULTILINE)
    assert match is not None, text
    return int(match[1])


def weights(result: Result) -> list[str]:
    assert result.returncode == 0 and not result.timed_out, result.text
    assert all("trained" in output for output in result.outputs), result.text
    return [line for line in result.outputs[0].splitlines() if re.match(r"\S+:0 [0-9a-f]+$", line)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The weights of a run that nobody kills; what trains, and how it stops, does not matter."""
    lines = weights(train("last_step", tmp_path_factory.mktemp("uninterrupted")))
    assert len(lines) == 6, lines  # weights, their two Adam slots, two powers, the global step
    return lines


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_started_again(tmp_path: Path, kind: str, uninterrupted: list[str]) -> None:
    killed = train(kind, tmp_path, "--die-at", "65")
    assert killed.returncode != 0 and not killed.timed_out, killed.text
    assert saved_step(tmp_path) == 60
    resumed = train(kind, tmp_path, "--start", "60")
    assert weights(resumed) == uninterrupted
    assert saved_step(tmp_path) == 100


def test_steps_counted_before_the_broadcast(tmp_path: Path) -> None:
    """Rank 1 stops 60 steps too early; rank 0 must not wait for it."""
    train("num_steps", tmp_path, "--die-at", "65")
    wrong = train("num_steps", tmp_path, "--start", "60", "--stop-first")
    assert wrong.returncode != 0 and not wrong.timed_out and wrong.seconds < 60, wrong.text
    # By the time rank 0 asks, rank 1 may have ended its program too.
    sentence = r"rank 1\b.*: its training loop ended at global step 61"
    assert re.search(sentence, wrong.outputs[0]), wrong.text
    assert "list BroadcastGlobalVariablesHook before StopAtStepHook" in wrong.outputs[0]


@needs_estimator
def test_a_finished_job_started_again(tmp_path: Path) -> None:
    """Rank 0 finds step 100 in its checkpoint and leaves; the others must not wait for it."""
    assert weights(train("estimator", tmp_path))
    again = train("estimator", tmp_path)
    assert again.returncode != 0 and not again.timed_out and again.seconds < 60, again.text
    assert "rank 0" in again.outputs[1] and "has left" in again.outputs[1], again.text
    assert "Estimator.train(max_steps=N) returns at once" in again.outputs[1], again.text


def test_a_checkpoint_that_is_half_written(tmp_path: Path, uninterrupted: list[str]) -> None:
    """Killed while it saved: files of step 80 without an entry in `checkpoint` do not count."""
    train("last_step", tmp_path, "--die-at", "65")
    for path in tmp_path.glob("model.ckpt-60.*"):
        copy = tmp_path / path.name.replace("-60.", "-80.")
        shutil.copy(path, copy)
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    assert weights(train("last_step", tmp_path)) == uninterrupted
