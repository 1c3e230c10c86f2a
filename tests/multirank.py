# SPDX-License-Identifier: Apache-2.0
"""Collects the files of tests/multi without importing them and runs them as ranks.

A file there holds tests as they run on a rank. It may say, at module level,

    RANKS = (2, 4)    # once with 2 ranks and once with 4; default (2,)
    HOSTS = "2x2"     # and once more with 4 ranks that take themselves for 2 hosts; or a tuple
    TIMEOUT_S = 120   # for one run of the file; default 300
    ALONE = True      # in a job of its own: it needs fresh processes, or ends them

All files with equal ranks and hosts are one job, for TensorFlow takes a rank longer to import than
most files take to run; it is started when the first of its tests is due. A job that had to be
killed, or ended early, is followed by another one with the files that it did not come to. The ranks
append what happens to files (`RankReporter`); each test case becomes one result of the outer run,
failed if it failed on any rank, with the tracebacks of the ranks. What is wrong with a job itself,
a status or something left behind, is an error of the last test.
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
_SHARED = pytest.StashKey[dict[str, "RankRun"]]()
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
            case = f"{Path(report.nodeid).name}::"
            self._write(case=case, outcome="failed", text=report.longreprtext)

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
    """A case's name in what ranks report: with its file; without more, errors outside of tests."""
    path, _, name = nodeid.partition("::")
    return f"{Path(path).name}::{name}"


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
    """Some files on so many ranks: what was asked for, and then what came of it."""

    ranks: int
    hosts: str | None
    # The functions of each file, in order, and the longest that it may take.
    functions: dict[Path, list[str]] = field(default_factory=dict)
    timeouts_s: dict[Path, float] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    # The job that a file was in.
    _result_of: dict[Path, Result] = field(default_factory=dict)
    # For each rank, its cases in order.
    cases: list[dict[str, Case]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.hosts}hosts" if self.hosts else f"{self.ranks}ranks"

    def run(self, keyword: str) -> None:
        """Runs the functions; `keyword` is pytest's -k."""
        self.cases = [{} for _ in range(self.ranks)]
        left = list(self.functions)
        while left:
            result = self._run_job(left, keyword)
            for path in left:
                self._result_of[path] = result
            failed_in = next((n for n, path in enumerate(left) if not self._is_done(path)), None)
            if failed_in is None or not (result.timed_out or result.returncode):
                return
            left = left[failed_in + 1 :]

    def _run_job(self, paths: list[Path], keyword: str) -> Result:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
        command += ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
        command += ["--continue-on-collection-errors"]
        command += ["-k", keyword] if keyword else []
        command += [f"{path}::{name}" for path in paths for name in self.functions[path]]
        env = {LABEL_VARIABLE: self.label}
        limits_s = [self.timeouts_s[path] for path in paths]
        with Job(command, self.ranks, env, self.hosts) as job:
            watch = _Silence(job.directory, self.ranks, max(limits_s))
            result = job.wait(sum(limits_s), watch)
            for rank, cases in enumerate(self.cases):
                cases.update(_read_cases(job.directory / f"results-{rank}.jsonl"))
        self.results.append(result)
        return result

    def _is_done(self, path: Path) -> bool:
        """Every rank has an outcome of every case of the file that it has begun or selected."""
        return all(
            case.outcome not in ("missing", "unfinished")
            for cases in self.cases
            for name, case in cases.items()
            if name.startswith(f"{path.name}::")
        ) and all(any(n.startswith(f"{path.name}::") for n in cases) for cases in self.cases)

    def collected(self, path: Path) -> bool:
        """Some rank read the file without an error."""
        return any(f"{path.name}::" not in cases for cases in self.cases)

    def cases_of(self, path: Path, function: str) -> list[str]:
        """The names of a function's cases: itself, or itself with each set of parameters."""
        names = dict.fromkeys(name for cases in self.cases for name in cases)
        return [name for name in names if name.partition("[")[0] == f"{path.name}::{function}"]

    def outcome(self, path: Path, case: str) -> tuple[str, str, float]:
        """Outcome over all ranks, the text that goes with it, and the longest duration."""
        of_rank = [cases.get(case, Case()) for cases in self.cases]
        seconds = max(found.seconds for found in of_rank)
        outcomes = {found.outcome for found in of_rank}
        if outcomes == {"passed"}:
            return "passed", "", seconds
        if outcomes <= {"passed", "skipped"}:
            reasons = dict.fromkeys(found.text for found in of_rank if found.text)
            return ("passed" if "passed" in outcomes else "skipped"), "; ".join(reasons), seconds
        return "failed", self._explain(path, of_rank), seconds

    def _explain(self, path: Path, of_rank: list[Case]) -> str:
        ranks_of: dict[str, list[str]] = {}
        result = self._result_of[path]
        for rank, found in enumerate(of_rank):
            text = found.text
            if found.outcome == "unfinished":
                text = f"was in this test when the job {_ending(result)}\n{_tail(result, rank)}"
            elif found.outcome == "missing":
                text = self.why_missing(path, rank)
            elif found.outcome != "failed":
                text = found.outcome
            ranks_of.setdefault(text, []).append(str(rank))
        return "\n".join(
            f"=== rank {', '.join(ranks)} of {self.label} ===\n{text}"
            for text, ranks in ranks_of.items()
        )

    def why_missing(self, path: Path, rank: int) -> str:
        """Why a rank has no outcome of a test."""
        outside = self.cases[rank].get(f"{path.name}::")
        ending = _ending(self._result_of[path])
        return f"did not get here: the job {ending}\n{outside.text if outside else ''}"

    def problems(self) -> str:
        """What is wrong with the jobs as such; empty if nothing."""
        found = []
        for result in self.results:
            found += [f"left behind: {line:.200}" for line in result.leftovers]
            if result.timed_out or result.returncode:
                found += [f"the job {_ending(result)}", result.launcher_output[-3000:]]
                ends = [_tail(result, rank) for rank in range(self.ranks)]
                found += [f"--- end of rank {rank} ---\n{end}" for rank, end in enumerate(ends)]
        return "\n".join(found)


def _ending(result: Result) -> str:
    """How a job ended, in a few words."""
    if result.timed_out:
        return f"was killed after {result.seconds:.0f} s"
    return f"ended with status {result.returncode}"


def _tail(result: Result, rank: int) -> str:
    lines = result.outputs[rank].splitlines()
    return "\n".join([line for line in lines if not _OF_PYTEST.search(line)][-60:])


class _Silence:
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


def _read_cases(path: Path) -> dict[str, Case]:
    cases: dict[str, Case] = {}
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
            run = RankRun(count, shape)
            alone = constants.get("ALONE", False)
            if not alone:
                run = self._shared().setdefault(run.label, run)
            run.timeouts_s[self.path] = constants.get("TIMEOUT_S", 300.0)
            facts = {"run": run, "functions": functions, "alone": alone}
            yield RankJob.from_parent(self, name=run.label, **facts)

    def _shared(self) -> dict[str, RankRun]:
        """The runs that files share, by label."""
        return self.session.stash.setdefault(_SHARED, {})


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id in ("RANKS", "HOSTS", "TIMEOUT_S", "ALONE"):
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
    """Outside: a file's part in a run."""

    def __init__(
        self, *, run: RankRun, functions: dict[str, set[str]], alone: bool, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.alone = alone
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
        run, path = job.run, job.path
        keyword = self.config.option.keyword
        if not run.results:
            for item in _items_of(self.session, run):
                run.functions.setdefault(item.path, []).append(item.name)
            run.run(keyword)
        cases = run.cases_of(path, self.name)
        for case in cases:
            name = case.partition("::")[2]
            yield self._report("call", f"{job.nodeid}::{name}", *run.outcome(path, case))
        if not cases and not (keyword and run.collected(path)):
            yield self._report("call", self.nodeid, "failed", run.why_missing(path, 0), 0.0)
        is_last = nextitem is None or self is _items_of(self.session, run)[-1]
        if is_last and (problems := run.problems()):
            yield self._report("teardown", f"{job.nodeid}::the job", "failed", problems, 0.0)

    def _report(
        self, when: Any, nodeid: str, outcome: Any, text: str, seconds: float
    ) -> pytest.TestReport:
        path, line, _ = self.location
        longrepr: Any = text or None
        if outcome == "skipped":
            longrepr = (path, line or 0, text)
        location = (path, line, nodeid.partition("::")[2])
        return pytest.TestReport(nodeid, location, {}, outcome, longrepr, when, duration=seconds)


def _items_of(session: pytest.Session, run: RankRun) -> list[RankTest]:
    """The selected tests of a run, in order."""
    return [
        item
        for item in session.items
        if isinstance(item, RankTest)
        and isinstance(item.parent, RankJob)
        and item.parent.run is run
    ]


def run_protocol(item: RankTest, nextitem: pytest.Item | None) -> None:
    """Does for a test of ranks what pytest does for a test function."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = list(item.reports(nextitem))
    # For the percentage that pytest prints.
    item.session.testscollected += len({report.nodeid for report in reports}) - 1
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
