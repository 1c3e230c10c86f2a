# SPDX-License-Identifier: Apache-2.0
"""Runs exception_program.py, and checks how the job has ended."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import in_full, needs_estimator
from launching import waiting_hvdrun
from mpi import Job, Result

PROGRAM = Path(__file__).with_name("exception_program.py")
ERROR = "ValueError: wrong shoe size"
# Nothing promises that a slow peer gets to its words in the grace that there is by default.
PATIENT = {"PATIENT": "1", "HVD_ABORT_GRACE_S": "1000"}


def chosen(few: set[tuple[Any, ...]], *parts: Any) -> list[Any]:
    """Every combination of the parts as parameters. By default only the few run."""
    found = []
    for case in itertools.product(*parts):
        marks = [] if case in few else [in_full]
        marks += [needs_estimator] if "estimator" in case else []
        found.append(pytest.param(*case, marks=marks, id="-".join(map(str, case))))
    return found


class Run:
    """A run of the program, which has gone wrong."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.text = result.text
        assert "going wrong" in self.text

    def check(self, returncode: int = 1) -> None:
        result = self.result
        assert not result.timed_out and result.returncode == returncode, self.text
        assert result.leftovers == [], self.text
        assert "finished" not in self.text

    @property
    def last_words(self) -> tuple[int, str]:
        """The rank that hvdrun says failed first, and its traceback. The last line names it too."""
        _, heading, last = self.text.rpartition(" failed first:\n")
        assert heading, self.text
        process = self.text.removesuffix(heading + last).rpartition("\n")[2]
        found = re.fullmatch(r"hvdrun: rank (\d+) \(host \S+, pid \d+\)", process)
        traceback, _, line = last.removesuffix("\n").rpartition("\n")
        assert found is not None, self.text
        assert line == f"{process} ended by the uncaught exception above", self.text
        return int(found[1]), traceback + "\n"


def run(n: int, *arguments: str, until: Sequence[str] = (), go: bool = True, **env: str) -> Run:
    """Until all ranks have ended. `until`: what they have to write before the first one aborts.

    go: make the file `go` then.
    """
    command = [sys.executable, str(PROGRAM), *arguments]
    env |= PATIENT if until else {}
    with Job(command, n, env, launcher=waiting_hvdrun("-np", str(n))) as job:
        for text in until:
            job.wait_for(text)
        if go:
            (job.directory / "go").touch()
        return Run(job.wait(timeout_s=120))
