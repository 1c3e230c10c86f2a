# SPDX-License-Identifier: Apache-2.0
"""Makes tensors and batches of the file of a timeline, which may be cut off."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from hvd_tf.timeline.errors import TimelineError
from hvd_tf.timeline.events import events_of, not_ours

_NEGOTIATION = "NEGOTIATE_"
_COPIES = ("copy_in_us", "reduce_us", "copy_out_us")
Row = tuple[int, int]  # a rank, and the number of its row


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
    for place, event in events_of(path):
        try:
            reader.take(event, place)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise not_ours(path, place) from None
    if unnamed := reader.finish():
        raise not_ours(path, unnamed)
    if not reader.trace.ranks:
        raise TimelineError(f"{path} is no timeline of hvd_tf: HVD_TIMELINE=FILE writes one")
    return reader.trace


class _Reader:
    """Takes events in any order, as other tools may have sorted them."""

    def __init__(self) -> None:
        self.trace = Trace()
        self._rows: dict[Row, str] = {}
        self._open: dict[Row, list[dict[str, Any]]] = defaultdict(list)
        # Tensors, by their number, whose row has no name yet, and where they stand.
        self._unnamed: list[tuple[int, Row, str]] = []
        # By their row and their begin, which a QUEUE shares with its batch.
        self._batches: dict[tuple[Row, float], Batch] = {}
        self._queues: list[tuple[Row, float, float]] = []

    def take(self, event: dict[str, Any], place: str) -> None:
        kind, row = event["ph"], (event["pid"], event["tid"])
        if kind == "M":
            self._take_metadata(event["name"], row, event.get("args", {}))
        elif kind == "B":
            self._open[row].append(event)
        elif kind == "E":
            if self._open[row]:
                begin = self._open[row].pop()
                args = {**begin.get("args", {}), **event.get("args", {})}
                self._take_span(begin["name"], row, begin["ts"], event["ts"], args, place)
        elif kind == "X":
            end_us = event["ts"] + event["dur"]
            args = event.get("args", {})
            self._take_span(event["name"], row, event["ts"], end_us, args, place)

    def finish(self) -> Optional[str]:
        """Adds what later events have told. Returns the place of one that makes no sense."""
        tensors = self.trace.tensors
        for number, row, place in self._unnamed:
            if row not in self._rows:
                return place
            tensors[number] = replace(tensors[number], name=self._rows[row])
        for row, begin_us, end_us in self._queues:
            batch = self._batches.get((row, begin_us))
            if batch is not None:  # else it has failed
                batch.queue_us += end_us - begin_us
        return None

    def _take_metadata(self, name: str, row: Row, arguments: dict[str, Any]) -> None:
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
        self, name: str, row: Row, begin_us: float, end_us: float, args: dict[str, Any], place: str
    ) -> None:
        if args.get("failed") or args.get("lost"):
            return
        if name.startswith(_NEGOTIATION):
            tensor = args.get("tensor", self._rows.get(row))
            if tensor is None:
                self._unnamed.append((len(self.trace.tensors), row, place))
            self.trace.tensors.append(_tensor(name, row, begin_us, end_us, args, tensor or ""))
        elif "copy_in_us" in args:
            batch = _batch(name, row, begin_us, end_us, args)
            self.trace.batches.append(batch)
            self._batches[row, begin_us] = batch
        elif name == "QUEUE":
            self._queues.append((row, begin_us, end_us))


def _tensor(
    name: str, row: Row, begin_us: float, end_us: float, args: dict[str, Any], tensor: str
) -> Tensor:
    return Tensor(
        rank=row[0],
        name=tensor,
        verb=name[len(_NEGOTIATION) :].lower(),
        process_set=args.get("set_serial", args["set"]),
        batch=args["batch"],
        bytes=args["bytes"],
        enqueued_us=begin_us,
        agreed_us=end_us,
        instance=args.get("instance", 0),
    )


def _batch(name: str, row: Row, begin_us: float, end_us: float, args: dict[str, Any]) -> Batch:
    return Batch(
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
