# SPDX-License-Identifier: Apache-2.0
"""Reads the file of a timeline, whole or cut off, into tensors and batches."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_tf.timeline.errors import TimelineError

_NEGOTIATION = "NEGOTIATE_"
_COPIES = ("copy_in_us", "reduce_us", "copy_out_us")


@dataclass(frozen=True)
class Tensor:
    """One rank's call, from its enqueueing to the agreement of all ranks. Times in us."""

    rank: int
    name: str
    """With its process set, where that is not the global one."""
    verb: str
    process_set: int
    """The serial of the process set, which is never used again."""
    batch: int
    bytes: int
    enqueued_us: float
    agreed_us: float
    instance: int = 0
    """Tells the iterations of a loop in a graph apart."""


@dataclass
class Batch:
    """One rank's part of a batch, from the agreement to its end. Times in us."""

    rank: int
    verb: str
    process_set: int
    """The serial, as in `Tensor`."""
    number: int
    tensors: int
    bytes: int
    sent_bytes: int
    agreed_us: float
    end_us: float
    copy_us: float
    queue_us: float = 0.0
    """Before the first copy."""

    @property
    def wire_us(self) -> float:
        """What is neither queue nor copy: other ranks and the way to them."""
        return max(self.end_us - self.agreed_us - self.queue_us - self.copy_us, 0.0)


@dataclass
class Trace:
    """What a file has."""

    size: int = 0
    """Ranks of the job."""
    ranks: list[int] = field(default_factory=list)
    """Those that were traced."""
    tensors: list[Tensor] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    clock_errors_us: dict[int, float] = field(default_factory=dict)
    """How wrong the times of a host may be at most, by its number. Rank 0's host is not in it."""
    dropped: int = 0
    """Events that are missing."""
    is_complete: bool = False
    """Whether the timeline was ended. Else its job was."""


def read(path: Path) -> Trace:
    """Reads a timeline that rank 0 has written.

    Raises:
      TimelineError: the file is something else.
      OSError: it cannot be read.
    """
    reader = _Reader()
    for number, event in _events(path):
        try:
            reader.take(event)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise TimelineError(f"{path}, line {number}: this is no event of hvd_tf") from None
    if not reader.trace.ranks:
        raise TimelineError(f"{path} is no timeline of hvd_tf: HVD_TIMELINE=FILE writes one")
    return reader.trace


def _events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and content of each line. The last one may have been cut off."""
    bad = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if bad:
                break
            text = line.strip().rstrip(",")
            if text in ("[", "]", ""):
                continue
            try:
                event = json.loads(text)
            except ValueError:
                bad = number
                continue
            yield number, event
        else:
            return
    raise TimelineError(f"{path}, line {bad}: this is no event of hvd_tf")


class _Reader:
    def __init__(self) -> None:
        self.trace = Trace()
        self._rows: dict[tuple[int, int], str] = {}
        self._open: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        # The batch that ended last on a row, whose phases follow.
        self._last: dict[tuple[int, int], Batch] = {}

    def take(self, event: dict[str, Any]) -> None:
        kind, row = event["ph"], (event["pid"], event["tid"])
        if kind == "M":
            self._take_metadata(event["name"], row, event.get("args", {}))
        elif kind == "B":
            self._open[row].append(event)
        elif kind == "E":
            if self._open[row]:
                begin = self._open[row].pop()
                arguments = {**begin["args"], **event["args"]}
                self._take_span(begin["name"], row, begin["ts"], event["ts"], arguments)
        elif kind == "X":
            end_us = event["ts"] + event["dur"]
            self._take_span(event["name"], row, event["ts"], end_us, event.get("args", {}))

    def _take_metadata(self, name: str, row: tuple[int, int], arguments: dict[str, Any]) -> None:
        if name == "thread_name":
            # A name that overlaps with itself has several rows.
            self._rows[row] = arguments.get("tensor", arguments["name"])
        elif name == "hvd_timeline":
            self.trace.size, self.trace.ranks = arguments["size"], arguments["ranks"]
        elif name == "hvd_clock":
            # What was written before the offset was better known stays as it is.
            errors_us, host = self.trace.clock_errors_us, arguments["host"]
            errors_us[host] = max(errors_us.get(host, 0.0), arguments["error_ns"] / 1000)
        elif name in ("hvd_dropped_events", "hvd_lost_chunks", "hvd_unreadable_chunks"):
            self.trace.dropped += arguments["count"]
        elif name == "hvd_timeline_end":
            self.trace.is_complete = True

    def _take_span(
        self, name: str, row: tuple[int, int], begin_us: float, end_us: float, args: dict[str, Any]
    ) -> None:
        if args.get("failed") or args.get("lost"):
            self._last.pop(row, None)
        elif name.startswith(_NEGOTIATION):
            self.trace.tensors.append(
                Tensor(
                    rank=row[0],
                    name=args.get("tensor", self._rows[row]),
                    verb=name[len(_NEGOTIATION) :].lower(),
                    process_set=args.get("set_serial", args["set"]),
                    batch=args["batch"],
                    bytes=args["bytes"],
                    enqueued_us=begin_us,
                    agreed_us=end_us,
                    instance=args.get("instance", 0),
                )
            )
        elif "copy_in_us" in args:
            batch = Batch(
                rank=row[0],
                verb=name.lower(),
                process_set=args.get("set_serial", args["set"]),
                number=args["batch"],
                tensors=args["tensors"],
                bytes=args["bytes"],
                sent_bytes=args["sent_bytes"],
                agreed_us=begin_us,
                end_us=end_us,
                copy_us=sum(args[copy] for copy in _COPIES),
            )
            self.trace.batches.append(batch)
            self._last[row] = batch
        elif name == "QUEUE" and row in self._last:
            self._last[row].queue_us += end_us - begin_us
