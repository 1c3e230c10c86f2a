# SPDX-License-Identifier: Apache-2.0
"""What ranks write about their tests (`RankReporter`), and what the outer process reads of it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mpi import DIRECTORY_VARIABLE

# Set in ranks only.
LABEL_VARIABLE = "HVD_TEST_LABEL"
# After a failure the other ranks often wait for the one that failed: no use in the whole limit.
SILENCE_AFTER_FAILURE_S = 30.0


class RankReporter:
    """In a rank: writes each test's start and outcome as a line of JSON."""

    def __init__(self, rank: int) -> None:
        path = Path(os.environ[DIRECTORY_VARIABLE], f"results-{rank}.jsonl")
        self._file = path.open("a", buffering=1)
        self._cpu_s = 0.0

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        # So that -k means here what it meant outside.
        item.extra_keyword_matches.add(os.environ[LABEL_VARIABLE])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            case = f"{Path(report.nodeid).name}::"
            self._write(case=case, outcome="failed", text=report.longreprtext)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._write(case=case_name(item.nodeid), outcome="selected")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._cpu_s = time.process_time()
        self._write(case=case_name(nodeid), outcome="started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = report.longreprtext
        if report.skipped and isinstance(report.longrepr, tuple):
            text = str(report.longrepr[2])
        if report.failed:
            text += "".join(f"\n--- {name} ---\n{content}" for name, content in report.sections)
        self._write(
            case=case_name(report.nodeid),
            when=report.when,
            outcome=report.outcome,
            text=text,
            seconds=report.duration,
        )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        cpu_s = time.process_time() - self._cpu_s
        self._write(case=case_name(nodeid), outcome="finished", cpu_s=cpu_s)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # mpirun ends all ranks once one has a status: a failed test is told by the file instead.
        if exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = 0


def case_name(nodeid: str) -> str:
    """A case's name in what ranks report, with its file. The file alone: errors outside tests."""
    path, _, name = nodeid.partition("::")
    return f"{Path(path).name}::{name}"


@dataclass
class Case:
    """One test case on one rank."""

    outcome: str = "missing"
    text: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0

    def add(self, line: dict[str, Any]) -> None:
        self.cpu_s += line.get("cpu_s", 0.0)
        self.seconds += line.get("seconds", 0.0)
        if line["outcome"] == "failed" or self.outcome == "failed":
            self.outcome = "failed"
            self.text = "\n".join(filter(None, [self.text, line.get("text", "")]))
        elif line["outcome"] == "skipped":
            self.outcome, self.text = "skipped", line["text"]
        elif line.get("when") == "call":
            self.outcome = "passed"
        elif line["outcome"] == "started":
            self.outcome = "unfinished"


def read_cases(path: Path) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    # A rank that was ended while it wrote a long line has left a part of it.
    whole_lines = path.read_text().rpartition("\n")[0] if path.exists() else ""
    for text in whole_lines.splitlines():
        line = json.loads(text)
        cases.setdefault(line["case"], Case()).add(line)
    return cases


class Silence:
    """True once no rank has reported anything for so long, or for a while in a failed test."""

    def __init__(self, directory: Path, ranks: int, limit_s: float) -> None:
        self._paths = [directory / f"results-{rank}.jsonl" for rank in range(ranks)]
        self._read_bytes = [0] * ranks
        self._limit_s = limit_s
        self._changed = time.monotonic()
        self._at = [""] * ranks  # the test that each rank is in
        self._failed: set[str] = set()

    def __call__(self) -> bool:
        for rank in range(len(self._paths)):
            self._read(rank)
        # One has failed, and others may wait for it.
        waits = len(set(self._at)) > 1 or self._at[0] in self._failed
        limit_s = SILENCE_AFTER_FAILURE_S if self._failed and waits else self._limit_s
        return time.monotonic() - self._changed > limit_s

    def _read(self, rank: int) -> None:
        path = self._paths[rank]
        if not path.exists() or path.stat().st_size == self._read_bytes[rank]:
            return
        self._changed = time.monotonic()
        with path.open("rb") as file:
            file.seek(self._read_bytes[rank])
            whole_lines = file.read().rpartition(b"\n")[0]
        for text in whole_lines.splitlines():
            line = json.loads(text)
            if line["outcome"] == "started":
                self._at[rank] = line["case"]
            elif line["outcome"] == "failed":
                self._failed.add(line["case"])
        self._read_bytes[rank] += len(whole_lines) + 1 if whole_lines else 0
