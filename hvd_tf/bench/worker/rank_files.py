# SPDX-License-Identifier: Apache-2.0
"""What a rank reads and writes: files in a directory that hvd-bench has made for the job.

"plan.json" is there from the start. "turns" has the number of turns that the ranks may take so far.
Without that file it is none. Rank 0 writes "0.json" with facts once all ranks are there, and
"N.json" with the results of the N-th turn.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

_POLL_S = 0.002


class Files:
    """The directory of a job, as seen by one of its ranks."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._is_writer = False
        self._turns = 0
        # So that hvd-bench can stop this process while another job has its turn.
        (self._directory / f"{os.getpid()}.pid").touch()

    def plan(self) -> dict[str, Any]:
        """What the rank has to do; see hvd_tf/bench/session.py."""
        plan: dict[str, Any] = json.loads((self._directory / "plan.json").read_text())
        return plan

    def ready(self, is_writer: bool, facts: dict[str, str]) -> None:
        """All ranks are there. Rank 0 writes the file, and the report shows its facts."""
        self._is_writer = is_writer
        self._write(facts)

    def wait_for_turn(self) -> None:
        """Returns when the next turn may begin."""
        while self._turns >= self._allowed():
            time.sleep(_POLL_S)
        self._turns += 1

    def end_turn(self, entries: dict[str, dict[str, Any]]) -> None:
        """Hands over the results: for each case's name its times, or why it was left out."""
        self._write(entries)

    def _allowed(self) -> int:
        try:
            return int((self._directory / "turns").read_text())
        except FileNotFoundError:
            return 0

    def _write(self, content: dict[str, Any]) -> None:
        if self._is_writer:
            new = self._directory / "new"
            new.write_text(json.dumps(content))
            os.replace(new, self._directory / f"{self._turns}.json")
