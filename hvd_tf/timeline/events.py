# SPDX-License-Identifier: Apache-2.0
"""The events of a trace's file: one a line, as hvd_tf writes them, or as other tools save them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from hvd_tf.timeline.errors import TimelineError

_GZIP = b"\x1f\x8b"
# What lists events, in the form of a trace that is an object.
_EVENTS = "traceEvents"


def events_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Each event, and its place in the file.

    Raises:
      TimelineError: the file is something else.
      OSError: it cannot be read.
    """
    with path.open("rb") as raw:
        is_compressed = raw.read(len(_GZIP)) == _GZIP
    # Some tools begin a file with a byte order mark.
    text: Any = {"mode": "rt", "encoding": "utf-8-sig", "errors": "replace"}
    try:
        with gzip.open(path, **text) if is_compressed else path.open(**text) as file:
            by_lines = _has_an_event_a_line(file)
            file.seek(0)
            yield from _lines(path, file) if by_lines else _whole(path, file)
    except (EOFError, zlib.error) as error:
        raise TimelineError(f"{path} cannot be unpacked ({error}): compress it again") from None


def not_ours(path: Path, place: str) -> TimelineError:
    """The error about what stands there."""
    return TimelineError(f"{path}, {place}: this is no event of hvd_tf")


def _has_an_event_a_line(file: TextIO) -> bool:
    first = next((line for line in map(str.strip, file) if line), "")
    if is_list := first == "[":
        first = next((line for line in map(str.strip, file) if line), "")
    if first in ("", "]"):
        return True  # and none
    try:
        value = json.loads(first.rstrip(","))
    except ValueError:
        return False
    return is_list or (isinstance(value, dict) and _EVENTS not in value)


def _lines(path: Path, file: TextIO) -> Iterator[tuple[str, Any]]:
    """The last one may have been cut off."""
    bad = 0
    for number, line in enumerate(file, 1):
        if bad:
            raise not_ours(path, f"line {bad}")
        text = line.strip().rstrip(",")
        if text in ("[", "]", ""):
            continue
        try:
            event = json.loads(text)
        except ValueError:
            bad = number
            continue
        yield f"line {number}", event


def _whole(path: Path, file: TextIO) -> Iterator[tuple[str, Any]]:
    try:
        trace = json.load(file)
    except ValueError as error:
        raise not_ours(path, f"line {getattr(error, 'lineno', 1)}") from None
    events = trace.get(_EVENTS) if isinstance(trace, dict) else trace
    for number, event in enumerate(events if isinstance(events, list) else [], 1):
        yield f"event {number}", event
