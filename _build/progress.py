# SPDX-License-Identifier: Apache-2.0
"""Runs pip, and shows of its output how far it is; all of it when pip fails.

    python _build/progress.py python -m pip install -v ...

A line for each large download, one for the installation, ten at most for each part of the
compilation: on a terminal as in a log.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Optional

SHOWN_MB = 10.0  # the size of a download that is worth a line
_FETCHED = re.compile(r"\s*(Downloading|Using cached) (\S+?)-[\d.]+\S* \(([\d.]+) MB\)")
_INSTALLED = re.compile(r"\s*Installing collected packages: (.*)")
_PART = re.compile(r"\s*== (.*)")  # of _build/native.py
_COMPILED = re.compile(r"\s*\[ *(\d+)(?:/(\d+)|%)\]")  # of Ninja, and of make


class Progress:
    """Finds in the lines of pip, Ninja and make what is worth showing."""

    def __init__(self) -> None:
        self._part = ""  # of the compilation
        self._tenths = -1  # of that part, that have been shown

    def of(self, line: str) -> Optional[str]:
        """What to show for this line, None for nothing."""
        if fetched := _FETCHED.match(line):
            large = float(fetched[3]) >= SHOWN_MB
            return f"{fetched[1].lower()} {fetched[2]}, {fetched[3]} MB" if large else None
        if installed := _INSTALLED.match(line):
            names = installed[1].split(", ")
            return f"installing {len(names)} packages" if len(names) > 1 else None
        if part := _PART.match(line):
            if part[1].startswith("waiting"):
                return part[1]
            self._part, self._tenths = f" {part[1]}", -1
        if compiled := _COMPILED.match(line):
            done, of_all = int(compiled[1]), int(compiled[2] or 100)
            tenths = 10 * done // of_all
            if tenths > self._tenths:
                self._tenths = tenths
                return f"compiling{self._part}, {100 * done // of_all} %"
        return None


def main(command: list[str]) -> int:
    """Run it; its exit status."""
    began = time.monotonic()
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    lines, progress = [], Progress()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            if shown := progress.of(line):
                print(f"{time.monotonic() - began:6.0f} s  {shown}", flush=True)
    if child.returncode:
        sys.stderr.write("".join(lines))
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
