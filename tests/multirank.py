# SPDX-License-Identifier: Apache-2.0
"""Collects the files of tests/multi without importing them and runs them as ranks.

A file there holds tests as they run on a rank. It may say, at module level,

    RANKS = (2, 3)    # once with 2 ranks and once with 3 (default (2,))
    HOSTS = "2x2"     # and once more with 4 ranks that take themselves for 2 hosts (or a tuple)
    IN_FULL = (4,)    # and with these, or on such hosts, where HVD_TEST_ALL=1 asks for all
    GPU = (2, "2x2")  # once more with these, `modes.run` on a GPU that is made up (fake_gpu.py)
    TIMEOUT_S = 120   # for one run of the file (default 300)
    OWN_INIT = True   # it begins and ends without init, with a fixture `hvd` of its own
    ALONE = True      # in a job of its own: it needs fresh processes, or ends them

HVD_TEST_ONE_SIZE=1 runs each file with 2 ranks only, or with its largest number where 2 is
not among them, and on a GPU that is made up what runs nowhere else. HVD_TEST_GPU=real runs each
file on the machine's own GPU and not elsewhere: as GPU says, or with one number of ranks.

All files with equal ranks and hosts are one job, because a rank takes longer to import TensorFlow
than most files take to run. Those with an init of their own are another one. The job is started
when the first of its tests is due. If a job had to be killed, or ended early, another one follows
with the files that it did not come to. The ranks append what happens to files (`RankReporter`).
Each test case becomes one result of the outer run. It is failed if it failed on any rank, and has
the tracebacks of the ranks. What is wrong with a job itself, a status or something left behind, is
an error of the last test.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cases import VARIABLES
from fake_gpu import GPU_VARIABLE, IS_REAL
from mpi import ROOT, Job, Result
from rank_files import constants_of, gpu_runs_of, runs_of, tests_of
from rank_results import LABEL_VARIABLE, Case, Silence, read_cases

_SHARED = pytest.StashKey[dict[tuple[str, bool], "RankRun"]]()
# Frames that every stack in a log has.
_OF_PYTEST = re.compile(r'File ".*/(_pytest|pytest|pluggy)/|File "<frozen runpy>"')


@dataclass
class RankRun:
    """Some files on so many ranks: what was asked for, and then what came of it."""

    ranks: int
    hosts: str | None
    on_gpu: bool = False
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
        ranks = f"{self.hosts}hosts" if self.hosts else f"{self.ranks}ranks"
        return f"{ranks}-gpu" if self.on_gpu else ranks

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
        env = {LABEL_VARIABLE: self.label, **VARIABLES}
        if self.on_gpu:
            env[GPU_VARIABLE] = "real" if IS_REAL else "made-up"
        limits_s = [self.timeouts_s[path] for path in paths]
        with Job(command, self.ranks, env, self.hosts) as job:
            watch = Silence(job.directory, self.ranks, max(limits_s))
            result = job.wait(sum(limits_s), watch)
            for rank, cases in enumerate(self.cases):
                cases.update(read_cases(job.directory / f"results-{rank}.jsonl"))
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

    def cost_of(self, path: Path) -> tuple[float, float]:
        """A file's share of its job in seconds, less imports: of the slowest rank, CPU of all."""
        of_ranks = [
            [case for name, case in cases.items() if name.startswith(f"{path.name}::")]
            for cases in self.cases
        ]
        wall = max(sum(case.seconds for case in cases) for cases in of_ranks)
        return wall, sum(case.cpu_s for cases in of_ranks for case in cases)

    def why_missing(self, path: Path, rank: int) -> str:
        """Why a rank has no outcome of a test."""
        outside = self.cases[rank].get(f"{path.name}::")
        ending = _ending(self._result_of[path])
        return f"did not get here: the job {ending}\n{outside.text if outside else ''}"

    def problems(self) -> str:
        """What is wrong with the jobs as such. Empty if nothing."""
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


class RankFile(pytest.File):
    """Outside: a file of tests/multi, read but not imported."""

    def collect(self) -> Iterator[pytest.Collector]:
        tree = ast.parse(self.path.read_text(), str(self.path))
        constants = dict(constants_of(tree))
        functions = dict(tests_of(tree))
        runs = [] if IS_REAL else [RankRun(count, shape) for count, shape in runs_of(constants)]
        runs += [RankRun(count, shape, on_gpu=True) for count, shape in gpu_runs_of(constants)]
        for run in runs:
            if not constants.get("ALONE", False):
                key = (run.label, constants.get("OWN_INIT", False))
                run = self._shared().setdefault(key, run)
            run.timeouts_s[self.path] = constants.get("TIMEOUT_S", 300.0)
            yield RankJob.from_parent(self, name=run.label, run=run, functions=functions)

    def _shared(self) -> dict[tuple[str, bool], RankRun]:
        """The runs that files share, by label and by OWN_INIT."""
        return self.session.stash.setdefault(_SHARED, {})


class RankJob(pytest.Collector):
    """Outside: a file's part in a run."""

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
        """The results of the function's cases. Runs the job if this is its first test."""
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
