# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of shares: which rank reads which files, and how many records each rank has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

UNEVEN = ("drop", "repeat", "raise", "keep")

# Ranks get whole files only if no rank then has this much more than another.
LARGEST_DIFFERENCE = 0.02


def whole_files(amounts: Sequence[int], size: int) -> Optional[list[list[int]]]:
    """For each of `size` ranks, the places of its files. None if that is too uneven.

    Args:
      amounts: records, or bytes, of each file.
      size: the number of ranks.

    Returns:
      Ascending places for every rank. Each file is there once. None if the largest total of a rank
      would be 2 % or more above the smallest, or if a rank would have nothing.
    """
    if size == 1:
        return [list(range(len(amounts)))] if sum(amounts) > 0 else None
    shares: list[list[int]] = [[] for _ in range(size)]
    totals = [0] * size
    # The largest file first. Each goes to the rank that has least.
    for place in sorted(range(len(amounts)), key=lambda place: (-amounts[place], place)):
        least = min(range(size), key=lambda rank: (totals[rank], len(shares[rank]), rank))
        shares[least].append(place)
        totals[least] += amounts[place]
    if min(totals) <= 0 or max(totals) - min(totals) >= LARGEST_DIFFERENCE * max(totals):
        return None
    return [sorted(share) for share in shares]


def dealt_records(records: int, size: int) -> list[int]:
    """How many records each rank has when they are dealt out in turn."""
    return [(records - rank + size - 1) // size for rank in range(size)]


def equal_length(lengths: Sequence[int], uneven: str, unit: str) -> Optional[int]:
    """How many of its records, or batches, every rank takes. None: all that it has.

    Args:
      lengths: what each rank has.
      uneven: one of UNEVEN.
      unit: what is counted, for the error's text.

    Raises:
      ValueError: a rank has nothing, unless uneven is "keep"; or lengths differ with "raise".
    """
    if uneven == "keep":
        return None
    check_none_empty(lengths, unit)
    if uneven == "raise" and min(lengths) != max(lengths):
        counts = ", ".join(f"{length} on rank {rank}" for rank, length in enumerate(lengths))
        raise ValueError(
            f'uneven="raise": the ranks have different numbers of {unit}s: {counts}. Pass '
            'uneven="drop" or uneven="repeat", or other files'
        )
    return max(lengths) if uneven == "repeat" else min(lengths)


def check_none_empty(lengths: Sequence[int], unit: str) -> None:
    """Raises ValueError if a rank has nothing. For the arguments see `equal_length`."""
    empty = [rank for rank, length in enumerate(lengths) if length == 0]
    if empty:
        raise ValueError(
            f"{_ranks(empty)} would have no {unit}: there are {sum(lengths)} for {len(lengths)} "
            "ranks. Use fewer ranks or more data"
        )


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def check_uneven(uneven: str) -> None:
    """Raises ValueError if `uneven` is not a policy."""
    if uneven not in UNEVEN:
        raise ValueError(f"uneven={uneven!r}: pass one of {', '.join(map(repr, UNEVEN))}")
