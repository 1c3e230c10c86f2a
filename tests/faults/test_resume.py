# SPDX-License-Identifier: Apache-2.0
"""A job that is killed at step 60-odd of 100 and started again ends as if nothing had happened.

TensorFlow takes longer to import than all of these trainings, so that one job does several.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from cases import has_estimator, needs_estimator
from mpi import Result, run_ranks

PROGRAM = Path(__file__).with_name("resume_program.py")
ESTIMATOR = pytest.param("estimator", marks=needs_estimator)
KINDS = ["last_step", "num_steps", "own_loop", ESTIMATOR]


def train(trainings: dict[Path, str], *options: str) -> Result:
    """Trains in each model directory, in that way, one after the other."""
    words = [word for model_dir, kind in trainings.items() for word in (kind, str(model_dir))]
    limit_s = 90 + 30 * len(trainings)
    return run_ranks([sys.executable, str(PROGRAM), *words, *options], 2, limit_s)


def saved_step(model_dir: Path) -> int:
    """The global step of the newest checkpoint."""
    text = (model_dir / "checkpoint").read_text()
    match = re.search(r'^model_checkpoint_path: ".*-(\d+)"', text, re.MULTILINE)
    assert match is not None, text
    return int(match[1])


def weights(result: Result) -> list[list[str]]:
    """The weights after each training of the job, all of which must have ended well."""
    assert result.returncode == 0 and not result.timed_out, result.text
    counts = {output.count("trained\n") for output in result.outputs}
    assert len(counts) == 1 and counts != {0}, result.text
    parts = result.outputs[0].split("trained\n")[:-1]
    return [
        [line for line in part.splitlines() if re.match(r"\S+:0 [0-9a-f]+$", line)]
        for part in parts
    ]


def copied(model_dir: Path, to: Path) -> Path:
    """The model directory as if it had been written there: the entries name whole paths."""
    shutil.copytree(model_dir, to)
    text = (to / "checkpoint").read_text()
    (to / "checkpoint").write_text(text.replace(str(model_dir), str(to)))
    return to


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What sessions and Estimators that were killed leave on rank 0."""
    folder = tmp_path_factory.mktemp("killed")
    found = {}
    for kind in ("last_step", *(["estimator"] if has_estimator() else [])):
        found[kind] = folder / kind
        result = train({found[kind]: kind}, "--die-at", "65")
        assert result.returncode != 0 and not result.timed_out, result.text
        assert saved_step(found[kind]) == 60
    return found


def half_written(model_dir: Path) -> Path:
    """Killed while it saved: files of step 80 without an entry in `checkpoint`."""
    for path in model_dir.glob("model.ckpt-60.*"):
        copy = model_dir / path.name.replace("-60.", "-80.")
        shutil.copy(path, copy)
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    return model_dir


class Trained:
    """Model directories that were trained in to the end, and the weights then, by name."""

    def __init__(self, folder: Path, killed: dict[str, Path]) -> None:
        self.folders = {"uninterrupted": folder / "uninterrupted"}
        kinds = {"uninterrupted": "last_step", "half_written": "last_step"}
        self.folders["half_written"] = half_written(
            copied(killed["last_step"], folder / "half_written")
        )
        for kind in ("last_step", "num_steps", "own_loop", "estimator"):
            origin = killed.get("estimator" if kind == "estimator" else "last_step")
            if origin is not None:
                self.folders[kind] = copied(origin, folder / kind)
                kinds[kind] = kind
        trainings = {path: kinds[name] for name, path in self.folders.items()}
        found = weights(train(trainings, "--start", "60"))
        self.weights = dict(zip(self.folders, found))
        assert len(found) == len(self.folders)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, killed: dict[str, Path]) -> Trained:
    done = Trained(tmp_path_factory.mktemp("trained"), killed)
    lines = done.weights["uninterrupted"]
    assert len(lines) == 6, lines  # weights, their two Adam slots, two powers, the global step
    return done


# half_written: files without an entry do not count.
@pytest.mark.parametrize("name", [*KINDS, "half_written"])
def test_killed_and_started_again(name: str, trained: Trained) -> None:
    assert trained.weights[name] == trained.weights["uninterrupted"]
    assert saved_step(trained.folders[name]) == 100


def test_steps_counted_before_the_broadcast(tmp_path: Path, killed: dict[str, Path]) -> None:
    """Rank 1 stops 60 steps too early. Rank 0 must not wait for it."""
    model_dir = copied(killed["last_step"], tmp_path / "model")
    wrong = train({model_dir: "num_steps"}, "--start", "60", "--stop-first")
    assert wrong.returncode != 0 and not wrong.timed_out, wrong.text
    # By the time rank 0 asks, rank 1 may have ended its program too.
    sentence = r"rank 1\b.*: its training loop ended at global step 61"
    assert re.search(sentence, wrong.outputs[0]), wrong.text
    assert "list BroadcastGlobalVariablesHook before StopAtStepHook" in wrong.outputs[0]


@needs_estimator
def test_a_finished_job_started_again(trained: Trained) -> None:
    """Rank 0 finds step 100 in its checkpoint and leaves. The others must not wait for it."""
    again = train({trained.folders["estimator"]: "estimator"})
    assert again.returncode != 0 and not again.timed_out, again.text
    assert "rank 0" in again.outputs[1] and "has left" in again.outputs[1], again.text
    assert "Estimator.train(max_steps=N) returns at once" in again.outputs[1], again.text
