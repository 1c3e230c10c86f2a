# SPDX-License-Identifier: Apache-2.0
"""How a rank tells the launcher that it has reached init(). Imports no TensorFlow.

`hvdrun --start-timeout` sets HVD_START_NOTICE to a word of the job. A rank on the launcher's host
leaves a file in HVD_JOB_DIR. On another host there is no such directory; the rank then writes a
line to stderr, which reaches the launcher anyway and which the launcher does not show.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hvd_tf import failure_report

VARIABLE = "HVD_START_NOTICE"
_PREFIX = "started-"
_STDERR = 2


def write(rank: int, environ: Mapping[str, str] = os.environ) -> None:
    """Tells it that this rank has; does nothing where no launcher asks."""
    word = environ.get(VARIABLE)
    if not word:
        return
    directory = environ.get(failure_report.DIRECTORY_VARIABLE)
    try:
        if directory and Path(directory).is_dir():
            Path(directory, f"{_PREFIX}{rank}").touch(mode=0o600)
        else:
            os.write(_STDERR, line(word))
    except OSError:
        pass  # a full disk, a closed stream: not a reason to end here


def line(word: str) -> bytes:
    """What a rank on another host writes. It begins with a byte that no text has."""
    return b"\x1e" + word.encode() + b"\n"


def ranks_in(directory: Path) -> set[int]:
    """The ranks that have left a file."""
    names = [path.name[len(_PREFIX) :] for path in directory.glob(f"{_PREFIX}*")]
    return {int(name) for name in names if name.isdecimal()}
