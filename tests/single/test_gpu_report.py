# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu_report.py: a row for each run, whatever it does, and none that stays behind."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_report.py"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("gpu_report", PROGRAM)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "gpu_report", module)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "result", "figure"),
    [
        ("print('[0] | resnet50 | 64 | 1 |')", "ok", "resnet50 , 64 , 1"),
        ("print('3 passed, 1 skipped in 2 s'); exit(3)", "status 3", "3 passed, 1 skipped in 2 s"),
        ("print('nothing of it')", "ok", ""),
    ],
)
def test_a_row(report: ModuleType, tmp_path: Path, text: str, result: str, figure: str) -> None:
    run = report.Run("speed", "a run", [sys.executable, "-c", text])
    cells = report.carry_out(run, tmp_path / "log", 60).split("|")
    assert [cells[1], cells[2], cells[4]] == [" a run ", f" {result} ", f" {figure} "]


def has_ended(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_run_that_takes_too_long_is_ended_with_all_that_it_started(
    report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()

    class Begun(subprocess.Popen):  # type: ignore[type-arg]
        """Its limit begins when the run has started all that it starts."""

        def wait(self, timeout: float | None = None) -> int:
            deadline = time.monotonic() + 60
            while len(list(pids.iterdir())) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return super().wait(timeout)

    monkeypatch.setattr(report.subprocess, "Popen", Begun)
    text = (
        "import os, pathlib, time; os.fork()\n"
        f"pathlib.Path({str(pids)!r}, str(os.getpid())).touch()\n"
        "time.sleep(600)"
    )
    run = report.Run("tests", "slow", [sys.executable, "-c", text])
    assert "| longer than 0.5 s |" in report.carry_out(run, tmp_path / "log", 0.5)
    begun = [path.name for path in pids.iterdir()]
    assert len(begun) == 2
    deadline = time.monotonic() + 60  # the kernel ends what is killed in its own time
    while not all(map(has_ended, begun)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_it_runs_is_there(report: ModuleType) -> None:
    root = PROGRAM.parents[1]
    for run in [*report.tests(), *report.speed(), *report.examples()]:
        for word in map(str, run.command):
            if word.endswith(".py"):
                assert (root / word).is_file(), word
    for run in report.programs():
        source = f"{Path(run.command[-1]).name}.cu"
        assert any((root / folder / source).is_file() for folder in ("tests/gpu", "benchmarks"))
    assert os.environ.get("HVD_TEST_NCCL") is None
