# SPDX-License-Identifier: Apache-2.0
"""Copies what the ranks write to this process's own streams: whole lines, each headed by its rank.

A line is "[1] text". mpirun's own messages have no head.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

_CHUNK_BYTES = 1 << 16
_STDERR = 2

Rewrite = Callable[[bytes], bytes]
"""Turns whole lines into whole lines."""


def headed(rank: int) -> Rewrite:
    """For a stream of one rank."""
    head = b"[%d] " % rank
    return lambda lines: head + lines[:-1].replace(b"\n", b"\n" + head) + b"\n"


def retagged(major: int) -> Rewrite:
    """For a stream of Open MPI's mpirun, which has tagged every line, such as "[1,0]<stdout>: "."""
    tag = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:" + (b" " if major >= 5 else b""))

    def rewrite(lines: bytes) -> bytes:
        parts, end = [], 0
        for found in tag.finditer(lines):
            start = found.start()
            begins_line = start == 0 or lines[start - 1 : start] == b"\n"
            # A rank may itself write something that begins like this.
            if start == end and not begins_line:
                continue
            # In the middle of a line: the rank before ended without a line feed.
            parts += [lines[end:start], b"" if begins_line else b"\n", b"[%s] " % found[1]]
            end = found.end()
        return b"".join([*parts, lines[end:]])

    return rewrite


@dataclass
class _Stream:
    source: int
    sink: int
    rewrite: Rewrite
    pending: bytearray = field(default_factory=bytearray)


class Output:
    """Owner: the launcher's main thread. Copying happens on a thread of its own."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed_sinks: set[int] = set()
        self._last_words = b""
        # A daemon: a terminal that is held must not hold the launcher after Ctrl-C.
        self._thread = threading.Thread(target=self._run, name="hvdrun-output", daemon=True)

    def add(self, source: int, sink: int, rewrite: Rewrite) -> None:
        """Copies from one descriptor to the other. To be called before start()."""
        os.set_blocking(source, False)
        self._selector.register(source, selectors.EVENT_READ, _Stream(source, sink, rewrite))

    def start(self) -> None:
        self._thread.start()

    def finish(self, last_words: bytes) -> None:
        """Copies what is there, writes the last words to stderr as they are, then ends.

        To be called once, when nobody writes any more.
        """
        self._last_words = last_words
        os.write(self._wake_write, b"\0")

    def finished(self, timeout_s: float) -> bool:
        """Waits for the end of finish()."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        finishing = False
        while not finishing:
            ready = [key.data for key, _ in self._selector.select()]
            finishing = None in ready
            for stream in filter(None, ready):
                self._copy_chunk(stream)
        for stream in self._streams():
            while self._copy_chunk(stream):
                pass
            self._end_line(stream)
        self._write(_STDERR, self._last_words)

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
        whole = chunk.rfind(b"\n") + 1
        if whole:
            lines = bytes(stream.pending) + chunk[:whole]
            stream.pending.clear()
            self._write(stream.sink, stream.rewrite(lines))
        stream.pending += chunk[whole:]
        return True

    def _end_line(self, stream: _Stream) -> None:
        if stream.pending:
            self._write(stream.sink, stream.rewrite(bytes(stream.pending) + b"\n"))
            stream.pending.clear()

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
