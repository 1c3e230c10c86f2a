# SPDX-License-Identifier: Apache-2.0
"""The launcher's own lines on stderr."""

from __future__ import annotations

import os


def say(text: str) -> None:
    """Writes a line of the launcher's own to stderr."""
    try:
        os.write(2, line(text))
    except OSError:
        pass  # nobody reads it


def line(text: str) -> bytes:
    """As it is written."""
    # Not by sys.stderr: its encoding need not know what a command line may hold.
    return f"hvdrun: {text}\n".encode(errors="backslashreplace")
