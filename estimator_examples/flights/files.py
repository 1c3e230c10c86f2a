# SPDX-License-Identifier: Apache-2.0
"""Files that a reader sees as a whole, and that one process at a time writes."""

from __future__ import annotations

import fcntl
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: Path, write: Callable[[io.BufferedWriter], None]) -> None:
    """Write a file so that a reader sees all of it or none of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Wait until no other process is in a block with this file, which is made."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the kernel when the process ends
        yield
