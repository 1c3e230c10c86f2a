# SPDX-License-Identifier: Apache-2.0
"""Collects the files of tests/multi without importing them and runs them as ranks.

A file there holds tests as they run on a rank. It may say, at module level,

    RANKS = (2, 4)    # once with 2 ranks and once with 4; default (2,)
    HOSTS = "2x2"     # and once more with 4 ranks that take themselves for 2 hosts; or a tuple
    TIMEOUT_S = 120   # for one run of the file; default 300

Each (file, ranks, hosts) is one job, started when the first of its tests is due. The ranks append
what happens to files (`RankReporter`); each test case becomes one result of the outer run, failed
if it failed on any rank, with the tracebacks of the ranks. What is wrong with the job itself, a
status or something left behind, is an error of its last test.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mpi import DIRECTORY_VARIABLE, ROOT, Job, Result

# Set in ranks only.
LABEL_VARIABLE = "HVD_TEST_LABEL"
# After a failure the other ranks often wait for the one that failed: no use in the whole limit.
SILENCE_AFTER_FAILURE_S = 30.0
# Frames that every stack in a log has.
_OF_PYTEST = re.compile(r'File ".*/(_pytest|pytest|pluggy)/|File "<frozen runpy>"')


class RankReporter:
    """In a rank: writes each test's start and outcome as a line of JSON."""

    def __init__(self, rank: int) -> None:
        path = Path(os.environ[DIRECTORY_VARIABLE], f"results-{rank}.jsonl")
        self._file = path.open("a", buffering=1)

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps(line) + "\n")

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        # So that -k means here what it meant outside.
        item.extra_keyword_matches.add(os.environ[LABEL_VARIABLE])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(case=None, outcome="failed", text=report.longreprtext)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self._write(case=_case(item.nodeid), outcome="selected")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(case=_case(nodeid), outcome="started")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = report.longreprtext
        if report.skipped and isinstance(report.longrepr, tuple):
            text = str(report.longrepr[2])
        if report.failed:
            text += "".join(f"\n--- {name} ---\n{content}" for name, content in report.sections)
        self._write(
            case=_case(report.nodeid),
            when=report.when,
            outcome=report.outcome,
            text=text,
            seconds=report.duration,
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        # mpirun ends all ranks once one has a status: a failed test is told by the file instead.
        if exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = 0


def _case(nodeid: str) -> str:
    return nodeid.partition("::")[2]


@dataclass
class Case:
    """One test case on one rank."""

    outcome: str = "missing"
    text: str = ""
    seconds: float = 0.0

    def add(self, line: dict[str, Any]) -> None:
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


@dataclass
class RankRun:
    """One run of one file: what was asked for, and then what came of it."""

    path: Path
    ranks: int
    hosts: str | None
    timeout_s: float
    result: Result | None = None
    # For each rank, its cases in order; None holds errors outside of any test.
    cases: list[dict[str | None, Case]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.hosts}hosts" if self.hosts else f"{self.ranks}ranks"

    def run(self, functions: list[str], keyword: str) -> None:
        """Runs these test functions; `keyword` is pytest's -k."""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
        command += ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
        command += ["-k", keyword] if keyword else []
        command += [f"{self.path}::{function}" for function in functions]
        env = {LABEL_VARIABLE: self.label}
        with Job(command, self.ranks, env, self.hosts) as job:
            watch = _SilenceAfterFailure(job.directory)
            self.result = job.wait(self.timeout_s, watch)
            for rank in range(self.ranks):
                self.cases.append(_read_cases(job.directory / f"results-{rank}.jsonl"))

    @property
    def collected(self) -> bool:
        """Some rank read the file without an error."""
        return any(None not in cases for cases in self.cases)

    def cases_of(self, function: str) -> list[str]:
        """The names of a function's cases: itself, or itself with each set of parameters."""
        names = dict.fromkeys(name for cases in self.cases for name in cases if name)
        return [name for name in names if name.partition("[")[0] == function]

    def outcome(self, case: str) -> tuple[str, str, float]:
        """Outcome over all ranks, the text that goes with it, and the longest duration."""
        of_rank = [cases.get(case, Case()) for cases in self.cases]
        seconds = max(found.seconds for found in of_rank)
        outcomes = {found.outcome for found in of_rank}
        if outcomes == {"passed"}:
            return "passed", "", seconds
        if outcomes <= {"passed", "skipped"}:
            reasons = dict.fromkeys(found.text for found in of_rank if found.text)
            return ("passed" if "passed" in outcomes else "skipped"), "; ".join(reasons), seconds
        return "failed", self._explain(of_rank), seconds

    def _explain(self, of_rank: list[Case]) -> str:
        ranks_of: dict[str, list[str]] = {}
        for rank, found in enumerate(of_rank):
            text = found.text
            if found.outcome == "unfinished":
                text = f"was in this test when the job {self.ending}\n{self._tail(rank)}"
            elif found.outcome == "missing":
                text = self.why_missing(rank)
            elif found.outcome != "failed":
                text = found.outcome
            ranks_of.setdefault(text, []).append(str(rank))
        return "\n".join(
            f"=== rank {', '.join(ranks)} of {self.label} ===\n{text}"
            for text, ranks in ranks_of.items()
        )

    @property
    def ending(self) -> str:
        """How the job ended, in a few words."""
        assert self.result is not None
        if self.result.timed_out:
            return f"was killed after {self.result.seconds:.0f} s"
        return f"ended with status {self.result.returncode}"

    def why_missing(self, rank: int) -> str:
        """Why a rank has no outcome of a test."""
        outside = self.cases[rank].get(None)
        return f"did not get here: the job {self.ending}\n{outside.text if outside else ''}"

    def problems(self) -> str:
        """What is wrong with the job as such; empty if nothing."""
        assert self.result is not None
        found = [f"left behind: {line:.200}" for line in self.result.leftovers]
        if self.result.timed_out or self.result.returncode:
            found += [f"the job {self.ending}", self.result.launcher_output[-3000:]]
            found += [f"--- end of rank {n} ---\n{self._tail(n)}" for n in range(self.ranks)]
        return "\n".join(found)

    def _tail(self, rank: int) -> str:
        assert self.result is not None
        lines = self.result.outputs[rank].splitlines()
        return "\n".join([line for line in lines if not _OF_PYTEST.search(line)][-60:])


class _SilenceAfterFailure:
    """True once a rank has failed a test and then no rank has reported anything for a while."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._size = -1
        self._changed = time.monotonic()
        self._failed = False

    def __call__(self) -> bool:
        files = sorted(self._directory.glob("results-*.jsonl"))
        size = sum(path.stat().st_size for path in files)
        if size != self._size:
            self._size, self._changed = size, time.monotonic()
            self._failed = any('"outcome": "failed"' in path.read_text() for path in files)
        return self._failed and time.monotonic() - self._changed > SILENCE_AFTER_FAILURE_S


def _read_cases(path: Path) -> dict[str | None, Case]:
    cases: dict[str | None, Case] = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        line = json.loads(text)
        cases.setdefault(line["case"], Case()).add(line)
    return cases


class RankFile(pytest.File):
    """Outside: a file of tests/multi, read but not imported."""

    def collect(self) -> Iterator[pytest.Collector]:
        tree = ast.parse(self.path.read_text(), str(self.path))
        constants = dict(_constants(tree))
        ranks, hosts = constants.get("RANKS", (2,)), constants.get("HOSTS", ())
        runs: list[tuple[int, str | None]] = [(count, None) for count in ranks]
        for shape in (hosts,) if isinstance(hosts, str) else hosts:
            count, each = shape.split("x")
            runs.append((int(count) * int(each), shape))
        functions = dict(_tests(tree))
        for count, shape in runs:
            run = RankRun(self.path, count, shape, constants.get("TIMEOUT_S", 300.0))
            yield RankJob.from_parent(self, name=run.label, run=run, functions=functions)


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id in ("RANKS", "HOSTS", "TIMEOUT_S"):
                yield node.targets[0].id, ast.literal_eval(node.value)


def _tests(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Test functions, and the words in their decorators, which the ids of cases are made of."""
    globals_ = {
        node.targets[0].id: _words(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            raise pytest.Collector.CollectError(
                f"class {node.name}: write functions in tests/multi"
            )
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            words = set().union(*map(_words, node.decorator_list))
            yield node.name, words.union(*(globals_.get(word, set()) for word in words))


def _words(tree: ast.AST) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    parts = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    values = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return names | parts | values


class RankJob(pytest.Collector):
    """Outside: one run of a file."""

    def __init__(self, *, run: RankRun, functions: dict[str, set[str]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run
        self._functions = functions

    def collect(self) -> Iterator[pytest.Item]:
        for name, words in self._functions.items():
            item = RankTest.from_parent(self, name=name)
            item.extra_keyword_matches.update(words)
            yield item


class RankTest(pytest.Item):
    """Outside: one test function of a job, with all its cases."""

    def runtest(self) -> None:
        raise AssertionError("tests of ranks are run by their job")

    def reports(self, nextitem: pytest.Item | None) -> Iterator[pytest.TestReport]:
        """The results of the function's cases; runs the job if this is its first test."""
        job = self.parent
        assert isinstance(job, RankJob)
        keyword = self.config.option.keyword
        if job.run.result is None:
            mine = [item.name for item in self.session.items if item.parent is job]
            job.run.run(mine, keyword)
        cases = job.run.cases_of(self.name)
        for case in cases:
            yield self._report("call", f"{job.nodeid}::{case}", *job.run.outcome(case))
        if not cases and not (keyword and job.run.collected):
            yield self._report("call", self.nodeid, "failed", job.run.why_missing(0), 0.0)
        is_last = nextitem is None or nextitem.parent is not job
        if is_last and (problems := job.run.problems()):
            yield self._report("teardown", f"{job.nodeid}::the job", "failed", problems, 0.0)

    def _report(
        self, when: Any, nodeid: str, outcome: Any, text: str, seconds: float
    ) -> pytest.TestReport:
        path, line, _ = self.location
        longrepr: Any = text or None
        if outcome == "skipped":
            longrepr = (path, line or 0, text)
        location = (path, line, _case(nodeid))
        return pytest.TestReport(nodeid, location, {}, outcome, longrepr, when, duration=seconds)


def run_protocol(item: RankTest, nextitem: pytest.Item | None) -> None:
    """Does for a test of ranks what pytest does for a test function."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = list(item.reports(nextitem))
    # For the percentage that pytest prints.
    item.session.testscollected += len({report.nodeid for report in reports}) - 1
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
