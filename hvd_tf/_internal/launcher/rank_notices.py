# SPDX-License-Identifier: Apache-2.0
"""What the ranks, and the processes that watch over them, have told the launcher."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hvd_tf._internal import notices, presence
from hvd_tf._internal.launcher import marked
from hvd_tf._internal.launcher.rank_main import ENDED, RUNNING, STOPPED

_NAME = re.compile(r"rank-\d+\.[a-z]+")
_LONGEST_FILE_BYTES = 4096
_FileId = tuple[int, int, int]


@dataclass(frozen=True)
class Notice:
    """One of them."""

    what: str
    rank: int
    host: str
    pid: int
    time_ns: int
    """When it was written, in nanoseconds since 1970 by that host's clock."""
    status: int = 0
    """The exit status as subprocess has it. Where the process is leaving: what it will be."""
    told: bool = False
    """The process has ended because it was asked to from outside, as mpirun does."""
    of_some: bool = False
    """The call of init() is for some ranks only: others may do without."""
    completed: int = 0
    """How many calls of init() for all ranks have succeeded in this process before."""

    @property
    def heading(self) -> str:
        """Which process this is, such as "rank 1 (host a, pid 7)"."""
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"


@dataclass
class RankState:
    """The latest of what is known of one rank."""

    process: Notice | None = None
    """Whether it runs, is stopped or has ended."""
    started: Notice | None = None
    """It has called init()."""
    returned: Notice | None = None
    """Its call of init() has failed."""
    leaving: Notice | None = None
    """Its program is over, and was so in an orderly way; the process may wait for MPI's end."""
    present: Notice | None = None
    """It takes part in the job now."""
    gone: Notice | None = None
    """It took part, and its process has gone without a word, as when it was killed."""
    mpi_has_aborted: bool = False
    """MPI has, on this rank: that is mostly a consequence of another one's end."""

    @property
    def ended(self) -> Notice | None:
        """Its end, once its process has gone."""
        return self.process if self.process and self.process.what == ENDED else None

    @property
    def is_stopped(self) -> bool:
        """Whether its process is, by a signal."""
        return self.process is not None and self.process.what == STOPPED

    @property
    def left(self) -> Notice | None:
        """The end of its program, whether or not its process is still there."""
        # A script may run several programs, one after another.
        again = self.leaving and self.started and self.started.time_ns > self.leaving.time_ns
        # While it waits for MPI the process may be ended, which is later and no reason.
        return self.leaving if self.leaving and not again else self.ended

    @property
    def waits_again(self) -> bool:
        """Whether it may wait in a call of init() for all ranks, after one that has succeeded."""
        started = self.started
        # A script's next program is in another world of MPI: its first call has none before it.
        if started is None or started.of_some or not started.completed or self.left is not None:
            return False
        return self.returned is None or self.returned.time_ns < started.time_ns


# Open MPI's, on a rank's stderr, just before it aborts.
ABORTS = re.compile(rb"^\[[^\]\n]+\] \*\*\* MPI_ERRORS_ARE_FATAL \(processes in ", re.MULTILINE)


@dataclass
class RankNotices:
    """Owner: the launcher's main thread. The thread of the output calls see()."""

    directory: Path
    """The job's."""
    word: str = field(default_factory=lambda: secrets.token_hex(8))
    """For HVD_NOTICE."""
    _lines: list[bytes] = field(default_factory=list)
    _aborted: set[int] = field(default_factory=set)
    # By name: how to tell a file from that of another notice, and what is in it.
    _files: dict[str, tuple[_FileId, Notice | None]] = field(default_factory=dict)

    def see(self, rank: int | None, lines: bytes) -> bytes:
        """Takes notices out of what a rank writes, or mpirun (None).

        Open MPI's may pass on the last lines of a rank on another host as its own, behind a NUL.
        """
        if rank is not None and ABORTS.search(lines):
            self._aborted.add(rank)
        if b"\x1e" not in lines:
            return lines
        line = re.compile(rb"\x00*\x1e" + self.word.encode() + rb" ([^\n]*)\n")
        self._lines += line.findall(lines)
        rest = line.sub(b"", lines)
        return rest if not rest or rest.endswith(b"\n") else rest + b"\n"

    def heard_of(self) -> set[int]:
        """The ranks on other hosts whose notices have come. For any thread."""
        return {notice.rank for notice in map(_parsed, tuple(self._lines)) if notice}

    @property
    def mpi_has_aborted(self) -> bool:
        """Whether it has said so on some rank."""
        return bool(self._aborted)

    def states(self) -> dict[int, RankState]:
        """The states of all ranks that anything is known of."""
        found: dict[int, RankState] = {}
        for notice in [*self._of_files(), *map(_parsed, self._lines)]:
            if notice:
                state = found.setdefault(notice.rank, RankState())
                if notice.what == notices.STARTED:
                    state.started = notice
                elif notice.what == notices.RETURNED:
                    state.returned = notice
                elif notice.what == notices.LEAVING:
                    state.leaving = notice
                elif notice.what == presence.PRESENT:
                    self._set_presence(state, notice)
                elif notice.what in (RUNNING, STOPPED, ENDED):
                    state.process = notice
        for rank in tuple(self._aborted):
            found.setdefault(rank, RankState()).mpi_has_aborted = True
        return found

    def _set_presence(self, state: RankState, notice: Notice) -> None:
        if notice.host != os.uname().nodename:
            return  # a file system may lock its files for each host alone
        is_held = presence.is_held(presence.file_of(self.directory, notice.rank))
        if is_held is None:
            return  # it has left in an orderly way
        # A process that becomes another program lets go too.
        if is_held or marked.runs(notice.pid):
            state.present = notice
        else:
            state.gone = notice

    def _of_files(self) -> list[Notice | None]:
        with suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name):
                    file = _file_id(entry)
                    known = self._files.get(entry.name)
                    if not known or known[0] != file:
                        self._files[entry.name] = (file, _read(Path(entry.path)))
        return [notice for _, notice in self._files.values()]


def _file_id(entry: os.DirEntry[str]) -> _FileId:
    # The inode alone does not tell: ext4 gives it to the next file but one, once it is free.
    facts = entry.stat(follow_symlinks=False)
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _read(path: Path) -> Notice | None:
    with suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode):
            with path.open("rb") as file:
                return _parsed(file.read(_LONGEST_FILE_BYTES))
    return None


def _parsed(text: bytes) -> Notice | None:
    """None: it is no notice of ours."""
    try:
        notice = Notice(**json.loads(text))
    except (ValueError, TypeError):
        return None
    numbers = (notice.rank, notice.pid, notice.time_ns, notice.status, notice.completed)
    flags = (notice.told, notice.of_some)
    of_type = all(type(n) is int for n in numbers) and all(type(flag) is bool for flag in flags)
    return notice if of_type and type(notice.host) is str and notice.rank >= 0 else None
