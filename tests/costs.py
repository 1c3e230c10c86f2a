# SPDX-License-Identifier: Apache-2.0
"""Says at the end of a run where its time went: the dearest files and jobs, in seconds.

CPU time counts every process that a test has started and waited for. It says what a test costs on
a machine that has other work too, where wall time says little.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from multirank import RankJob, RankTest

SHOWN = 15


def cost_of(item: pytest.Item) -> str:
    """What a test's time is added to: its file, or the job that its file shares with others."""
    if isinstance(item, RankTest) and isinstance(item.parent, RankJob):
        run = item.parent.run
        where = item.path.name if item.parent.alone else "shared"
        return f"tests/multi, {where}, {run.label}"
    return str(item.path.relative_to(Path(__file__).parent.parent))


def cpu_s() -> float:
    """Of this process and of those that it has waited for."""
    uses = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Costs:
    """Adds up the time of each file, fixtures included."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, float]] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measures a test with its setup and teardown."""
        wall, cpu = time.monotonic(), cpu_s()
        yield
        before = self._of.get(cost_of(item), (0.0, 0.0))
        spent = (time.monotonic() - wall, cpu_s() - cpu)
        self._of[cost_of(item)] = (before[0] + spent[0], before[1] + spent[1])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the dearest first, and the sum."""
        rows = sorted(self._of.items(), key=lambda row: -row[1][0])
        total = (sum(cost[0] for _, cost in rows), sum(cost[1] for _, cost in rows))
        terminalreporter.section("where the time went")
        terminalreporter.line("wall s   CPU s")
        for name, (wall, cpu) in [*rows[:SHOWN], ("all", total)]:
            terminalreporter.line(f"{wall:6.1f}  {cpu:6.1f}  {name}")
