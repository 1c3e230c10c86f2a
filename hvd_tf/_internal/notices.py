# SPDX-License-Identifier: Apache-2.0
"""How a rank tells the launcher how far it has come. Imports no TensorFlow.

hvdrun sets HVD_NOTICE to a word of the job. A rank on the launcher's host leaves a file in
HVD_JOB_DIR. On another host there is no such directory. There the rank writes a line to stderr. It
reaches the launcher, which does not show it. The process that watches over the rank
(launcher/rank_main.py) writes notices of the same form.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from hvd_tf._internal import failure_report

VARIABLE = "HVD_NOTICE"
STARTED = "started"
"""It has called init()."""
RETURNED = "returned"
"""Its call of init() has failed."""
LEAVING = "leaving"
"""Its program is over. It may still have to wait for MPI to end."""
_STDERR = 2


def write(
    what: str,
    rank: int,
    environ: Mapping[str, str] = os.environ,
    of_some: bool = False,
    status: int = 0,
    completed: int = 0,
) -> None:
    """Tells the launcher. Does nothing if no launcher asks.

    Args:
      what: STARTED, RETURNED or LEAVING.
      rank: as the launcher counts.
      environ: where the launcher's variables are.
      of_some: with STARTED: not all ranks that were launched need call init().
      status: with LEAVING: what the process will return.
      completed: how many calls of init() for all ranks have succeeded in this process before.
    """
    word = environ.get(VARIABLE)
    if not word:
        return
    directory = environ.get(failure_report.DIRECTORY_VARIABLE)
    facts = {"host": os.uname().nodename, "pid": os.getpid(), "time_ns": time.time_ns()}
    facts |= {"of_some": True} if of_some else {}
    facts |= {"status": status} if status else {}
    facts |= {"completed": completed} if completed else {}
    text = json.dumps({"what": what, "rank": rank, **facts}).encode()
    try:
        if directory and Path(directory).is_dir():
            _leave(Path(directory), f"rank-{rank}.{what}", text)
        else:
            # It begins with a byte that no text has.
            os.write(_STDERR, b"\x1e%s %s\n" % (word.encode(), text))
    except OSError:
        pass  # a full disk, a closed stream: not a reason to end here


def _leave(directory: Path, name: str, text: bytes) -> None:
    draft = directory / f".{name}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(text)
    # The launcher may be reading already: it sees the whole notice or none.
    draft.rename(directory / name)
