# SPDX-License-Identifier: Apache-2.0
"""Commits that outlive the job's processes: rank 0 keeps the last one in a private file.

The file is in the directory that HVD_ELASTIC_DIR names. `hvdrun --restarts` makes one for the time
that it runs. Without a directory there is no file: commits are then in memory only.
"""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

DIRECTORY_VARIABLE = "HVD_ELASTIC_DIR"


class CommitFile:
    """The file of one state, which is known by its number: states are made in the same order."""

    def __init__(self, number: int, environ: Mapping[str, str] = os.environ) -> None:
        """number: 0 for the first state of a program.

        Raises:
          ValueError: HVD_ELASTIC_DIR is set, by the user or hvdrun, to what is no directory here.
        """
        directory = environ.get(DIRECTORY_VARIABLE)
        self._path: Optional[Path] = None
        if directory:
            if not Path(directory).is_dir():
                raise ValueError(
                    f"{DIRECTORY_VARIABLE}={directory} is no directory on rank 0's host: set it to "
                    "one that is there, and is kept while the job is started again"
                )
            self._path = Path(directory, f"commit-{number}")

    def write(self, content: Any) -> None:
        """Replace what is there. A reader sees the old or the new content, never a part.

        Raises:
          OSError: there is no room.
        """
        if self._path is None:
            return
        descriptor, draft = tempfile.mkstemp(dir=self._path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                pickle.dump(content, file, protocol=5)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)
        except BaseException:
            os.unlink(draft)
            raise

    def read(self) -> Any:
        """What was written last, by this process or an earlier one. None: nothing was.

        Raises:
          ValueError: somebody else can write to the file, or wrote it.
        """
        if self._path is None or not self._path.exists():
            return None
        with self._path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o077:
                raise ValueError(
                    f"{self._path} is not private to this user, so nothing is read from it: "
                    "remove it"
                )
            return pickle.load(file)
