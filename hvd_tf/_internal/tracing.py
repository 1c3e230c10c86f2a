# SPDX-License-Identifier: Apache-2.0
"""start_timeline, stop_timeline and comm_stats: what can be seen of a running job."""

from __future__ import annotations

import ctypes
import json
import os
from typing import TypedDict, Union

from hvd_tf._internal import native

__all__ = ["CommStats", "VerbStats", "comm_stats", "start_timeline", "stop_timeline"]

_lib = native.lib


class VerbStats(TypedDict):
    """What one verb has done on this rank since `init`."""

    collectives: int
    """Calls that have completed. A grouped call is one."""
    batches: int
    """Batches in which these calls travelled."""
    rows: int
    """Rows of the results of allgather, alltoall and sparse allreduce, this rank's own among them.
    A rank in `join` gets none."""
    blocks: int
    """Blocks that were sent. One counts once for each rank that gets it, also where that rank reads
    it in this rank's memory."""
    payload_bytes: int
    """Bytes of these blocks without their headers."""
    header_bytes: int
    """Bytes of these blocks' headers, 16 each, and of sizes that are told before data."""


class CommStats(TypedDict):
    """What this rank has sent and received since `init`."""

    control_messages_sent: int
    """Messages of the control plane: reports, records, heartbeats, ends, the timeline's events."""
    control_messages_received: int
    control_bytes_sent: int
    control_bytes_received: int
    verbs: dict[str, VerbStats]
    """By the verb's name, such as "allreduce"."""


def start_timeline(file_path: Union[str, os.PathLike[str]], mark_cycles: bool = False) -> None:
    """Begins a timeline of all ranks. Rank 0 writes it. docs/timeline.md says how to read it.

    Rank 0's call begins it on all ranks. On the others the call does nothing, so all ranks may
    make it. A timeline that runs is ended before. `HVD_TIMELINE` need not be set.

    Args:
      file_path: the file, in a directory of rank 0's host. What is in it is lost.
      mark_cycles: whether to mark when a rank takes what was enqueued.

    Raises:
      ValueError: `init` was not called, or, on rank 0, the file cannot be written. A timeline
        that runs goes on then.
    """
    native.check(_lib.hvd_start_timeline(os.fsencode(file_path), int(bool(mark_cycles))))


def stop_timeline() -> None:
    """Ends the timeline, if there is one. On rank 0 the file is complete when it returns.

    Rank 0's call ends it on all ranks. On the others the call does nothing. It waits for ranks
    that do not answer for at most a second.

    Raises:
      ValueError: `init` was not called.
    """
    native.check(_lib.hvd_stop_timeline())


def comm_stats() -> CommStats:
    """Counts what this rank has sent and received since `init`, in calls, rows and bytes.

    Process sets of one rank send nothing, so their calls do not count. The numbers go on while
    they are read: they are exact where no collective is under way.

    Returns:
      A dictionary of whole numbers that can be written as JSON: see `CommStats`.

    Raises:
      ValueError: `init` was not called.
    """
    text = ctypes.create_string_buffer(1024)
    while (length := native.known(_lib.hvd_comm_stats(text, len(text)))) >= len(text):
        text = ctypes.create_string_buffer(2 * length)
    stats: CommStats = json.loads(text.value)
    return stats
