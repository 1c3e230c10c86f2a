# SPDX-License-Identifier: Apache-2.0
"""A folder of data files that readers find as a whole or not at all, written once on each host."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import tensorflow as tf
from files import only_one

STAMP = "stamp.json"  # is written last and describes the other files

Facts = dict[str, Any]  # what a stamp says of the files, for their readers
Fill = Callable[[Path], Facts]  # writes the files into this folder


def find(folder: Path, format: int) -> Optional[Facts]:
    """What the folder's stamp says; None when there is none, or the files are not as it says."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name != STAMP}
    except (OSError, ValueError):
        return None
    return stamp if stamp.get("format") == format and stamp.get("bytes") == sizes else None


def write(folder: Path, format: int, fill: Fill) -> None:
    """Write the files so that a reader finds all of them or none, whatever is there already."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=folder.name + "."))
    try:
        stamp = {"format": format, **fill(temporary)}
        stamp["bytes"] = {path.name: path.stat().st_size for path in temporary.iterdir()}
        (temporary / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)  # half-written, damaged or of another format
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def prepare(folder: Path, format: int, fill: Fill) -> None:
    """Write the files where they are missing; of several processes one does, and others wait."""
    if find(folder, format) is not None:
        return  # where they may only be read, too
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(folder.with_name(folder.name + ".lock")):
        if find(folder, format) is None:
            write(folder, format, fill)


def prepare_on_all(hvd: ModuleType, folder: Path, format: int, fill: Fill) -> Facts:
    """What the stamp of this folder says, which one rank of each host prepares; all ranks call it.

    Raises:
      SystemExit: on every rank, when one could not write or read the files; says which and why.
    """
    failure = ""
    try:
        if hvd.local_rank() == 0:  # hvd: one rank of each host
            prepare(folder, format, fill)
    except (OSError, SystemExit, tf.errors.OpError) as error:
        failure = f"rank {hvd.rank()} cannot prepare {folder}: {error}"
    stop_on_failure(hvd, failure)  # hvd: the others wait here
    found = find(folder, format)
    failure = f"rank {hvd.rank()} finds no whole data in {folder}" if found is None else ""
    stop_on_failure(hvd, failure)
    return found


def stop_on_failure(hvd: ModuleType, failure: str) -> None:
    """Wait for all ranks; end the program on every one of them when one has failed."""
    failures = [text for text in hvd.allgather_object(failure) if text]
    if failures:
        raise SystemExit("; ".join(failures) if hvd.rank() == 0 else 1)
