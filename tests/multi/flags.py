# SPDX-License-Identifier: Apache-2.0
"""Lets ranks wait for one another without hvd_tf: by files in the directory of their job."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mpi import DIRECTORY_VARIABLE


class Flags:
    """Those of one test. A flag that a rank has raised stays up, and all ranks see it."""

    def __init__(self, test: str) -> None:
        self._folder = Path(os.environ[DIRECTORY_VARIABLE], "flags", test)
        self._folder.mkdir(parents=True, exist_ok=True)

    def raise_(self, name: object) -> None:
        """Lets those go on that wait for it."""
        (self._folder / str(name)).touch()

    def wait(self, name: object) -> None:
        """Waits for it, in any thread. Should it never come, `Silence` ends the job."""
        while not (self._folder / str(name)).exists():
            time.sleep(0.005)
