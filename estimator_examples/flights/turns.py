# SPDX-License-Identifier: Apache-2.0
"""Processes that take turns at training: the pipes by which another tells them to, and its ends."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

COUNT = 6  # turns of a training, of which the first warms up
GO, TOOK = "go", "took"  # pipes in a folder of the process's own


class Turn:
    """The end of the process that trains."""

    def __init__(self, folder: Path) -> None:
        # Opening it waits for nobody, and reading ends when the other process has.
        self._go = os.open(folder / GO, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self._go, True)
        self._took = os.open(folder / TOOK, os.O_WRONLY)

    def wait(self) -> None:
        """Return when it is this process's turn."""
        if not os.read(self._go, 1):
            sys.exit("the process that takes the times has ended")

    def tell(self, seconds: float) -> None:
        """The turn is over, and took so long."""
        os.write(self._took, f"{seconds!r}\n".encode())


class Caller:
    """The end of the process that takes the times."""

    def __init__(self, folder: Path) -> None:
        """Make the pipes, before the other process starts."""
        for name in (GO, TOOK):
            os.mkfifo(folder / name, 0o600)
        self._go = os.open(folder / GO, os.O_RDWR)  # for writing alone it would wait for a reader
        self._took = os.open(folder / TOOK, os.O_RDWR)

    def go(self) -> None:
        """It is the other process's turn."""
        os.write(self._go, b".")

    def took_s(self, running: Callable[[], bool]) -> float:
        """How long the turn took, when it is over. `running` is asked meanwhile, as in children.py.

        Raises:
          RuntimeError: the process has ended.
        """
        line = b""
        while not line.endswith(b"\n"):
            if select.select([self._took], [], [], 0.02)[0]:
                line += os.read(self._took, 64)
            elif not running():
                raise RuntimeError("the training ended before its turn was over")
        return float(line)

    def close(self) -> None:
        """A process that still waits for its turn ends."""
        os.close(self._go)
        os.close(self._took)
