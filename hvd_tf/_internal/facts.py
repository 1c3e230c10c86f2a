# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other before they act together: gather facts, compare, raise on all ranks.

Facts are small and JSON: what was asked for, what a rank has found, why it cannot go on. Every rank
then compares the same list of all ranks' facts. So all of them raise the same error, or none does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import eager_mode
from hvd_tf._internal.names import difference_of
from hvd_tf._internal.runtime import ProcessSet, global_process_set

Facts = dict[str, Any]

TRAINED_ALREADY = (
    "Estimator.train(max_steps=N) returns at once on a rank whose checkpoint is already at step N. "
    "Call hvd.estimator.train(estimator, ...) instead, by which no rank trains then."
)

ERROR = "error"
"""The fact that says why a rank cannot go on. Missing or empty: it can."""


def exchange(facts: Facts, name: str, process_set: ProcessSet = global_process_set) -> list[Facts]:
    """Every rank's facts, in rank order. A collective call of the set's ranks.

    Args:
      facts: JSON, but for NumPy's numbers, which become Python's. Tuples become lists.
      name: the same on every rank. Names of two exchanges may not overlap in time.
      process_set: the ranks that take part.

    Raises:
      ValueError: on every rank, if a rank's facts have an "error". It names these ranks.
    """
    text = json.dumps(facts, default=_number)
    texts = [text.encode()]
    if process_set.size() != 1:
        data = np.frombuffer(text.encode(), np.uint8)
        # Eager, also within a graph, because what is built there depends on the answer.
        with eager_mode(), tf.device("CPU"):
            sizes = _gather(np.array([data.size], np.int64), f"{name}/sizes", process_set)
            joined = _gather(data, f"{name}/facts", process_set)
        texts = [part.tobytes() for part in np.split(joined, np.cumsum(sizes)[:-1])]
    everyones = [json.loads(theirs) for theirs in texts]
    _raise_errors(everyones)
    return everyones


def exchange_at(place: str, facts: Facts, remedy: str) -> list[Facts]:
    """`exchange` where a rank's thread enters what all ranks do together.

    Elsewhere on another rank it would wait for ever: both would wait for the other one to come.

    Args:
      place: what the rank does, in words for messages.
      facts: as in `exchange`.
      remedy: a sentence about what may have led a rank elsewhere.

    Raises:
      ValueError: as `exchange`, and on every rank, if ranks are at different places.
    """
    everyones = exchange({"place": place, **facts}, "entrance")
    for rank, theirs in enumerate(everyones):
        if theirs["place"] != everyones[0]["place"]:
            raise ValueError(
                f"rank 0 is about to {everyones[0]['place']} while rank {rank} is about to "
                f"{theirs['place']}. Every rank must make the same calls in the same order. "
                f"{remedy}"
            )
    return everyones


def check_same(everyones: Sequence[Facts], fact: str, what: str, remedy: str) -> None:
    """Raises ValueError on every rank if the ranks' facts differ. It says whose and how."""
    for rank, theirs in enumerate(everyones):
        if theirs[fact] != everyones[0][fact]:
            raise ValueError(
                f"{what} differs: {_shown(everyones[0][fact])} on rank 0, {_shown(theirs[fact])} "
                f"on rank {rank}. {remedy}"
            )


def check_same_sets(
    everyones: Sequence[Collection[str]], root_rank: int, what: str, remedy: str
) -> None:
    """Raises ValueError on every rank if a rank has other words than the root. It says which."""
    root = set(everyones[root_rank])
    differences = [
        f"rank {rank}: {difference_of(set(theirs), root)}"
        for rank, theirs in enumerate(everyones)
        if set(theirs) != root
    ]
    if differences:
        raise ValueError(
            f"{what} differ from those of rank {root_rank}; {remedy}. {'; '.join(differences)}"
        )


def _raise_errors(everyones: Sequence[Facts]) -> None:
    errors: dict[str, list[str]] = {}
    for rank, theirs in enumerate(everyones):
        if theirs.get(ERROR):
            errors.setdefault(theirs[ERROR], []).append(str(rank))
    if errors:
        raise ValueError(
            "; ".join(
                error if len(ranks) == len(everyones) else f"rank {', '.join(ranks)}: {error}"
                for error, ranks in errors.items()
            )
        )


def _gather(array: np.ndarray, name: str, process_set: ProcessSet) -> np.ndarray:
    return ops.allgather(tf.constant(array), name, True, process_set).numpy()


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is no fact to be told to other ranks")


def _shown(fact: Any, at_most: int = 200) -> str:
    text = str(fact)
    return text if len(text) <= at_most else text[:at_most] + "..."
