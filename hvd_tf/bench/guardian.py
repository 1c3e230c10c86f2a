# SPDX-License-Identifier: Apache-2.0
"""A process that outlives an hvd-bench that is killed, and ends the ranks that it has started.

These are stopped most of the time, so they would not notice.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from hvd_tf._internal.launcher import marked


class Guardian:
    """Owner: the job."""

    def __init__(self, variable: str, value: str, directory: Path) -> None:
        """Starts it. It ends what has this value of an environment variable, once this one ends."""
        command = [sys.executable, "-m", __name__, variable, value, str(directory)]
        # In a session of its own, where a terminal's signals do not come.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Ends it, after the job."""
        self._process.communicate()


def _main(variable: str, value: str, directory: str) -> None:
    sys.stdin.buffer.read()  # nothing comes but the end
    marked.kill_marked(variable, value)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
