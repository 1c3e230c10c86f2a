# SPDX-License-Identifier: Apache-2.0
"""Folds away what Open MPI says of a job that failed, because hvdrun's last line says it better.

Open MPI puts such text between two lines of dashes. What is folded away is kept: it is shown if
hvdrun itself has nothing to say at the end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Optional

_DASHES = b"-" * 74
# How the first line between the dashes begins. Open MPI 4 and 5.
_KNOWN = re.compile(
    rb"(prterun|mpirun|orterun|mpiexec) (has exited due to process rank"
    rb"|detected that one or more processes exited with non-zero status"
    rb"|noticed that process rank)"
    rb"|Primary job +terminated normally, but \d+ process"
    rb"|MPI_ABORT was invoked on rank"
)

Key = tuple[int, Optional[int]]
"""The stream, and the rank on it. None: mpirun itself."""


class MpiWords:
    """Owner: the thread that copies the output."""

    def __init__(self) -> None:
        """Nothing is folded yet."""
        self._blocks: defaultdict[Key, list[bytes]] = defaultdict(list)
        self.folded: list[bytes] = []
        """Whole blocks, in the order in which they came."""

    def fold(self, key: Key, lines: bytes) -> bytes:
        """What is to be shown of these whole lines, or of a last part of one, now."""
        if _DASHES not in lines and not self._blocks[key] and not self.folded:
            return lines
        return b"".join(self._line(self._blocks[key], line) for line in lines.splitlines(True))

    def rest(self, source: int) -> list[tuple[Optional[int], bytes]]:
        """What of this stream was held back, because a block might have gone on, by rank."""
        held = [(key[1], block) for key, block in self._blocks.items() if key[0] == source]
        return [(rank, self._release(block)) for rank, block in held if block]

    def _line(self, block: list[bytes], line: bytes) -> bytes:
        is_edge = line.rstrip(b"\r\n") == _DASHES
        if not block:
            if not is_edge:
                # By a zero byte Open MPI 5 ends a text of several blocks.
                return b"" if self.folded and line.rstrip(b"\r\n") == b"\0" else line
            block.append(line)
            return b""
        if len(block) == 1 and not _KNOWN.match(line):
            before = self._release(block)
            return before + self._line(block, line)  # it may be the first line of another block
        block.append(line)
        if is_edge:
            self.folded.append(self._release(block))
        return b""

    @staticmethod
    def _release(block: list[bytes]) -> bytes:
        text = b"".join(block)
        block.clear()
        return text
