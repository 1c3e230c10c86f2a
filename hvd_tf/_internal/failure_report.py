# SPDX-License-Identifier: Apache-2.0
"""The file in which a failing rank leaves its traceback for the launcher. Imports no TensorFlow.

hvdrun names a private directory in HVD_JOB_DIR. Each rank that ends with an uncaught exception
writes one file there, and hvdrun prints the earliest once everything else has been printed. So does
a program that a rank has started, of which the rank may make nothing: `ends_job` tells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

DIRECTORY_VARIABLE = "HVD_JOB_DIR"
_PREFIX = "failure-"
# The most characters of a traceback. Its end says more than its beginning.
_LONGEST = 1 << 20


@dataclass(frozen=True)
class Report:
    """An uncaught exception of one rank."""

    time_ns: int
    """When it was caught, in nanoseconds since 1970."""
    rank: int
    """-1: not known, because hvd was not initialised and no launcher gave it."""
    host: str
    pid: int
    traceback: str
    """The traceback as Python prints it, with a line feed at its end."""
    blames_peer: bool = False
    """Whether the exception itself names a peer's failure as the reason."""
    ends_job: bool = True
    """Whether its process ends the job. If not, it may be a rank's own, or one that it started."""

    @property
    def heading(self) -> str:
        """Which process this was, such as "rank 1 (host a, pid 7)"."""
        rank = "a rank" if self.rank < 0 else f"rank {self.rank}"
        return f"{rank} (host {self.host}, pid {self.pid})"


def write(report: Report, environ: Mapping[str, str] = os.environ) -> bool:
    """Leaves the report for the launcher. False: there is no launcher, or its directory is gone."""
    directory = environ.get(DIRECTORY_VARIABLE)
    if not directory:
        return False
    data = asdict(report)
    data["traceback"] = report.traceback[-_LONGEST:]
    draft = Path(directory, f".{_PREFIX}{report.pid}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
            json.dump(data, file)
        # The launcher may already be reading. It must see the whole report or none.
        os.rename(draft, Path(directory, f"{_PREFIX}{report.pid}"))
    except OSError:
        return False
    return True


def read_all(directory: Path) -> list[Report]:
    """Those that processes have left there so far."""
    reports = []
    for path in directory.glob(f"{_PREFIX}*"):
        try:
            report = Report(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # not a report of ours: it is left out
        if _is_sound(report):
            reports.append(report)
    return reports


def first_of(reports: Iterable[Report]) -> Report | None:
    """The earliest report that blames no peer. If all do, the earliest of all.

    Of equally early ones, that of the lowest rank.
    """
    return min(reports, key=attrgetter("blames_peer", "time_ns", "rank"), default=None)


def _is_sound(report: Report) -> bool:
    numbers, texts = (report.time_ns, report.rank, report.pid), (report.host, report.traceback)
    of_type = all(type(n) is int for n in numbers) and all(type(text) is str for text in texts)
    return of_type and type(report.blames_peer) is type(report.ends_job) is bool
