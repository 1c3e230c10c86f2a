# SPDX-License-Identifier: Apache-2.0
"""How many files the launcher may have open, which has to be enough for all ranks."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from types import TracebackType

from hvd_tf._internal.launcher.errors import LaunchError

# For stdout and for stderr.
_STREAMS = 2
# The most that it has open beside what it was started with and those of the ranks.
_OWN = 24


class FileLimit:
    """While it is entered, this process may open as many as its hard limit allows.

    What it starts gets the limit that was: programs may count on a small one.
    """

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def __enter__(self) -> FileLimit:
        hard = self._before[1]
        with suppress(OSError, ValueError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()

    def check(self, ranks: int, has_files: bool, has_pipes: bool) -> None:
        """To be called before any is opened.

        Args:
          ranks: how many there are.
          has_files: whether what each rank writes is kept in files.
          has_pipes: whether it comes by pipes of each rank.

        Raises:
          LaunchError: they are not enough.
        """
        present = len(os.listdir("/proc/self/fd"))
        needed = present + _OWN + _STREAMS * ranks * (has_files + has_pipes)
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if needed > allowed:
            raise LaunchError(
                f"-np {ranks} needs {needed} open files here, and {allowed} are allowed: raise the "
                f"hard limit of 'ulimit -n'{', or leave out --output-filename' * has_files}"
            )

    def restore(self) -> None:
        """Sets it as it was. Also for a child that is about to become another program."""
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, self._before)
