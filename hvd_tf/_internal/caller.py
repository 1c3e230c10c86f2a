# SPDX-License-Identifier: Apache-2.0
"""The program that has called `hvd_tf.run`: the launcher that it has started ends with it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
from collections.abc import MutableMapping
from pathlib import Path
from types import TracebackType
from typing import Optional

_VARIABLE = "HVD_RUN_CALLER"
_PR_SET_PDEATHSIG = 1


def variables(directory: str) -> dict[str, str]:
    """What the launcher finds in its environment. To be called by its parent.

    directory: that of the call, which is to go with the caller.
    """
    return {_VARIABLE: f"{os.getpid()} {directory}"}


def end_signal() -> int:
    """The signal that asks the launcher to end: one that it is not made to ignore.

    The launcher inherits from its caller which ones are ignored. SIGKILL leaves it to its watcher.
    """
    asking = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return next((n for n in asking if signal.getsignal(n) != signal.SIG_IGN), signal.SIGKILL)


class Caller:
    """The launcher's caller, if it has one. While it is entered, nothing is done.

    Once it is left, the call's directory is removed where the caller cannot do so any more.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Takes it out of the environment: what the launcher starts has another parent."""
        pid, _, directory = environ.pop(_VARIABLE, "").partition(" ")
        self._pid = int(pid or 0)
        self.directory = Path(directory) if directory else None

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self.directory and self.has_gone():
            shutil.rmtree(self.directory, ignore_errors=True)

    def follow(self) -> None:
        """Has the kernel send `end_signal` when the caller ends. It may have ended already."""
        if self._pid:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(end_signal()), 0, 0, 0)

    def has_gone(self) -> bool:
        """Whether there was one, and it has ended."""
        return self._pid not in (0, os.getppid())
