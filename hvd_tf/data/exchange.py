# SPDX-License-Identifier: Apache-2.0
"""What the ranks tell each other about their input before any record is read."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import eager_mode, v1
from hvd_tf._internal.runtime import ProcessSet

DATA_PREFIX = "data/"  # of the names of all collectives of this package

Facts = dict[str, Any]


def exchange(facts: Facts, process_set: ProcessSet) -> list[Facts]:
    """Every rank's facts, in rank order. A collective call; `facts` must be JSON.

    Raises:
      ValueError: on every rank, if a rank's facts have an "error". It names the rank.
    """
    everyones = [facts]
    if process_set.size() != 1:
        data = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        # Eager, also within the graph of an input_fn, because what is built there depends on the
        # answer.
        with eager_mode(), tf.device("CPU"):
            sizes = _gather(np.array([data.size], np.int64), "sizes", process_set)
            texts = np.split(_gather(data, "facts", process_set), np.cumsum(sizes)[:-1])
        everyones = [json.loads(text.tobytes()) for text in texts]
    errors: dict[str, list[str]] = {}
    for rank, theirs in enumerate(everyones):
        if theirs.get("error"):
            errors.setdefault(theirs["error"], []).append(str(rank))
    if errors:
        raise ValueError(
            "; ".join(
                error if len(ranks) == len(everyones) else f"rank {', '.join(ranks)}: {error}"
                for error, ranks in errors.items()
            )
        )
    return everyones


def all_same(everyones: list[Facts], fact: str, what: str, remedy: str) -> None:
    """Raises ValueError on every rank if the ranks' facts differ. It says whose and how."""
    for rank, theirs in enumerate(everyones):
        if theirs[fact] != everyones[0][fact]:
            raise ValueError(
                f"{what} differs: {_shown(everyones[0][fact])} on rank 0, {_shown(theirs[fact])} "
                f"on rank {rank}. {remedy}"
            )


def announce(text: str, process_set: ProcessSet) -> None:
    """Prints a line on stderr, on the set's first rank."""
    if process_set.rank() == 0:
        print(f"hvd_tf: {text}", file=sys.stderr, flush=True)


def checked_size(process_set: ProcessSet) -> int:
    """The number of ranks of the set, to which this one belongs.

    Raises:
      ValueError: before `init`; the set is not registered; this rank is not a member.
      RuntimeError: while a tf.function is traced.
    """
    if v1.executing_eagerly_outside_functions() and not tf.executing_eagerly():
        raise RuntimeError(
            "hvd.data asks the other ranks while it builds a dataset, so it cannot be a part of a "
            "tf.function: build the dataset outside"
        )
    size = process_set.size()
    if size is None:
        raise ValueError(
            f"{process_set} is not registered; pass it to hvd.init(process_sets=...) on every rank"
        )
    if not process_set.included():
        raise ValueError(f"this rank is not a member of {process_set}; call on its members only")
    return size


def _gather(array: np.ndarray, part: str, process_set: ProcessSet) -> np.ndarray:
    return ops.allgather(tf.constant(array), f"{DATA_PREFIX}{part}", True, process_set).numpy()


def _shown(fact: Any, at_most: int = 200) -> str:
    text = str(fact)
    return text if len(text) <= at_most else text[:at_most] + "..."
