# SPDX-License-Identifier: Apache-2.0
"""Says at the end of a run where its time went: the dearest files and jobs, in seconds.

CPU time counts every process that a test has started and waited for. It says what a test costs on
a machine that has other work too, where wall time says little.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from multirank import RankRun, RankTest

SHOWN = 20
ROOT = Path(__file__).parent.parent
Cost = tuple[float, float]  # wall and CPU seconds


def cpu_s() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def plus(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1]


class Costs:
    """Adds up the time of each file, fixtures included."""

    def __init__(self) -> None:
        self._of: defaultdict[str, Cost] = defaultdict(lambda: (0.0, 0.0))
        self._runs: dict[int, RankRun] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measures a test with its setup and teardown."""
        wall, cpu = time.monotonic(), cpu_s()
        yield
        name = str(item.path.relative_to(ROOT))
        if isinstance(item, RankTest):
            # The first test of a job runs all of them, so each file's share is asked for later.
            name = f"tests/multi, start and end of ranks, {item.parent.run.label}"
            self._runs[id(item.parent.run)] = item.parent.run
        self._of[name] = plus(self._of[name], (time.monotonic() - wall, cpu_s() - cpu))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker of pytest-xdist gives its sums to the process that started it."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = dict(self._of)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """That process takes them."""
        for name, cost in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self._of[name] = plus(self._of[name], cost)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the dearest first, and the sum."""
        total = (sum(wall for wall, _ in self._of.values()), sum(c for _, c in self._of.values()))
        for run in self._runs.values():
            for path in run.functions:
                wall, cpu = run.cost_of(path)
                self._of[f"tests/multi/{path.name}, {run.label}"] = (wall, cpu)
                rest = f"tests/multi, start and end of ranks, {run.label}"
                self._of[rest] = plus(self._of[rest], (-wall, -cpu))
        rows = sorted(self._of.items(), key=lambda row: -row[1][0])[:SHOWN]
        terminalreporter.section("where the time went")
        terminalreporter.line("wall s   CPU s")
        for name, (wall, cpu) in [*rows, ("all", total)]:
            terminalreporter.line(f"{wall:6.1f}  {cpu:6.1f}  {name}")
