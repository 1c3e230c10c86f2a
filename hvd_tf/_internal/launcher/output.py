# SPDX-License-Identifier: Apache-2.0
"""Copies what the ranks write to this process's own streams: whole lines, each headed by its rank.

A line is "[1] text". mpirun's own messages have no head. On request the time stands before that,
and each rank's lines go to files of its own as well.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from hvd_tf._internal.launcher.errors import LaunchError
from hvd_tf._internal.launcher.mpi_words import MpiWords

_CHUNK_BYTES = 1 << 16
_LONGEST_TAG = 64  # bytes before a line of a rank
_STDERR = 2
_STREAMS = {1: "stdout", 2: "stderr"}

Part = tuple[Optional[int], bytes]
"""Whole lines of one rank, or of mpirun itself (None)."""
Split = Callable[[bytes], Sequence[Part]]
"""Says whose the lines are that came from one stream."""
Watch = Callable[[Optional[int], bytes], bytes]
"""Gets the lines of a Part, and returns those that are to be shown."""


def of_rank(rank: int) -> Split:
    """For a stream of one rank."""
    return lambda lines: [(rank, lines)]


def tagged(major: int) -> Split:
    """For a stream of Open MPI's mpirun, which has tagged every line, such as "[1,0]<stdout>: "."""
    tag = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:" + (b" " if major >= 5 else b""))

    def split(lines: bytes) -> list[Part]:
        parts: list[Part] = []
        rank, end = None, 0
        for found in tag.finditer(lines):
            start = found.start()
            begins_line = start == 0 or lines[start - 1 : start] == b"\n"
            # A rank may itself write something that begins like this.
            if start == end and not begins_line:
                continue
            # In the middle of a line: the rank before ended without a line feed.
            parts += _tagged_part(rank, lines[end:start] + (b"" if begins_line else b"\n"))
            rank, end = int(found[1]), found.end()
        return [*parts, *_tagged_part(rank, lines[end:])]

    return split


def _tagged_part(rank: int | None, text: bytes) -> Iterator[Part]:
    # A tag is for one line. What comes without one is mpirun's.
    own = text.find(b"\n") + 1 if rank is not None else 0
    if own:
        yield rank, text[:own]
    if text[own:]:
        yield None, text[own:]


class RankFiles:
    """DIR/rank.0/stdout and so on: what each rank writes, without heads. Owner: main thread."""

    def __init__(self, directory: Path, ranks: int) -> None:
        """Makes them for every rank. Those of an earlier job are written anew.

        Raises:
          LaunchError: they cannot be written.
        """
        width = len(str(ranks - 1))
        self._files: dict[tuple[int, int], int] = {}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            for rank in range(ranks):
                place = directory / f"rank.{rank:0{width}}"
                place.mkdir(parents=True, exist_ok=True)
                for sink, name in _STREAMS.items():
                    self._files[rank, sink] = os.open(place / name, flags, 0o644)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"--output-filename {directory}: {error.filename} cannot be written "
                f"({error.strerror}): name a directory that can be"
            ) from None

    def write(self, rank: int, sink: int, data: bytes) -> None:
        """Adds to a rank's file. A disk that is full ends that file, and not the job."""
        file = self._files.get((rank, sink))
        view = memoryview(data)
        while view and file is not None:
            try:
                view = view[os.write(file, view) :]
            except OSError as error:
                os.close(self._files.pop((rank, sink)))
                words = f"hvdrun: {_STREAMS[sink]} of rank {rank} is kept no further: "
                with suppress(OSError):
                    os.write(_STDERR, f"{words}{error.strerror}\n".encode())
                return

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()


@dataclass
class _Stream:
    source: int
    sink: int
    split: Split
    pending: bytearray = field(default_factory=bytearray)


class Output:
    """Owner: the launcher's main thread. Copying happens on a thread of its own."""

    def __init__(
        self,
        timestamp: bool = False,
        files: RankFiles | None = None,
        watch: Watch | None = None,
        fold: MpiWords | None = None,
    ) -> None:
        """Nothing is copied before start().

        Args:
          timestamp: whether each line begins with the time at which it came.
          files: where each rank's lines go as well.
          watch: sees all lines first.
          fold: keeps lines from being shown.
        """
        self._timestamp, self._files, self._watch, self._fold = timestamp, files, watch, fold
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._owned: list[int] = []
        self._closed_sinks: set[int] = set()
        self._last_words: Callable[[], bytes] = bytes
        self._is_copying = False
        self._heard_at_s = time.monotonic()
        self.is_silent = True
        """Whether nothing has come so far."""
        # A daemon: a terminal that is held must not hold the launcher after Ctrl-C.
        self._thread = threading.Thread(target=self._run, name="hvdrun-output", daemon=True)

    def add(self, source: int, sink: int, split: Split, own: bool = False) -> None:
        """Copies from one descriptor to the other. To be called before start().

        own: close() is to close the source.
        """
        if own:
            self._owned.append(source)
        os.set_blocking(source, False)
        self._selector.register(source, selectors.EVENT_READ, _Stream(source, sink, split))

    def start(self) -> None:
        self._thread.start()

    def quiet_s(self) -> float:
        """How many seconds nothing of a rank has come. 0 while it waits for a reader."""
        return 0.0 if self._is_copying else time.monotonic() - self._heard_at_s

    def finish(self, last_words: Callable[[], bytes]) -> None:
        """Copies what is there, writes the last words to stderr as they are, then ends.

        To be called once, when nobody writes any more. The words are asked for in the thread of the
        output, when all has been copied.
        """
        self._last_words = last_words
        os.write(self._wake_write, b"\0")

    def finished(self, timeout_s: float) -> bool:
        """Waits for the end of finish()."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Gives its descriptors back, unless the copying was left to itself."""
        if self._thread.is_alive():
            return
        self._selector.close()
        for descriptor in (self._wake_read, self._wake_write, *self._owned):
            os.close(descriptor)

    def _run(self) -> None:
        finishing = False
        while not finishing:
            ready = [key.data for key, _ in self._selector.select()]
            finishing = None in ready
            self._is_copying = True
            for stream in filter(None, ready):
                self._copy_chunk(stream)
            self._is_copying = False
        for stream in self._streams():
            while self._copy_chunk(stream):
                pass
            self._end_line(stream)
        words = self._last_words()
        if self._fold and not words:
            self._write(_STDERR, b"".join(self._fold.folded))
        self._write(_STDERR, words)

    def _streams(self) -> list[_Stream]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _copy_chunk(self, stream: _Stream) -> bool:
        """False at the stream's end, and when nothing is there at the moment."""
        try:
            chunk = os.read(stream.source, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(stream.source)
            self._end_line(stream)
            return False
        self.is_silent = False
        whole = chunk.rfind(b"\n") + 1
        if whole:
            lines = bytes(stream.pending) + chunk[:whole]
            stream.pending.clear()
            self._pass_on(stream, lines)
        stream.pending += chunk[whole:]
        if not whole:
            self._note_rank(stream.split(bytes(stream.pending[:_LONGEST_TAG])))
        return True

    def _end_line(self, stream: _Stream) -> None:
        if stream.pending:
            self._pass_on(stream, bytes(stream.pending) + b"\n")
            stream.pending.clear()
        for rank, text in self._fold.rest(stream.source) if self._fold else ():
            self._write(stream.sink, self._shown(rank, text))

    def _pass_on(self, stream: _Stream, lines: bytes) -> None:
        shown = []
        parts = stream.split(lines)
        for rank, text in parts:
            if self._watch:
                text = self._watch(rank, text)
            if not text:
                continue
            if rank is not None and self._files:
                self._files.write(rank, stream.sink, _headed(self._stamp_now(), text))
            if self._fold and not (text := self._fold.fold((stream.source, rank), text)):
                continue
            shown.append(self._shown(rank, text))
        self._write(stream.sink, b"".join(shown))
        self._note_rank(parts)

    def _note_rank(self, parts: Sequence[Part]) -> None:
        if any(rank is not None for rank, _ in parts):
            self._heard_at_s = time.monotonic()

    def _shown(self, rank: int | None, text: bytes) -> bytes:
        stamp = self._stamp_now()
        return _headed(stamp if rank is None else b"%s[%d] " % (stamp, rank), text)

    def _stamp_now(self) -> bytes:
        return _stamp() if self._timestamp else b""

    def _write(self, sink: int, data: bytes) -> None:
        view = memoryview(data)
        while view and sink not in self._closed_sinks:
            try:
                view = view[os.write(sink, view) :]
            except BlockingIOError:
                select.select([], [sink], [])
            except OSError:
                # As with `hvdrun ... | head`: that nobody reads the log does not end the training.
                self._closed_sinks.add(sink)


def _headed(head: bytes, lines: bytes) -> bytes:
    if not head:
        return lines
    return head + lines[:-1].replace(b"\n", b"\n" + head) + b"\n"


def _stamp() -> bytes:
    now = time.time()
    day = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    zone = time.strftime("%z", time.localtime(now))
    return f"{day}.{int(now % 1 * 1000):03}{zone} ".encode()
