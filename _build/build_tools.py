# SPDX-License-Identifier: Apache-2.0
"""Which programs that a build needs run here."""

from __future__ import annotations

import re
import shutil
import subprocess


def cmake_is_usable() -> bool:
    """A cmake of 3.18 or newer runs here."""
    match = re.search(r"version (\d+)\.(\d+)", runs("cmake"))
    return match is not None and (int(match[1]), int(match[2])) >= (3, 18)


def runs(tool: str) -> str:
    """The output of `tool --version`; empty where it does not run.

    Being in PATH is not enough: a console script of the target environment cannot import its
    package under build isolation.
    """
    if (path := shutil.which(tool)) is None:
        return ""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError:  # a script whose interpreter has gone
        return ""
    return done.stdout if done.returncode == 0 else ""
