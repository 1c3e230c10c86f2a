# SPDX-License-Identifier: Apache-2.0
"""How often flights were late on the days before: of one airport, airline, aircraft, flight number.

A flight's own day never counts, so nothing is used that is not known when the first flights of a
day leave at 5 o'clock: the last ones of the day before are due by then, late or not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TYPICAL = 0.2  # the share of late flights, before the first day has shown any
PRIOR = 20.0  # flights of the common rate that are added to what was seen


def late_rates(
    groups: Sequence[tuple[np.ndarray, float]], late: np.ndarray, day: np.ndarray
) -> np.ndarray:
    """float32 [n, len(groups)]: the log odds of being late, from the days before a flight's own.

    groups: int32 [n], equal for flights that count together, and the days after which a day counts
      half. late: float32 [n], 0 or 1. day: int16 [n], ordered as the days are.
    """
    _, date = np.unique(day, return_inverse=True)
    columns = [_log_odds(members, half_life, late, date) for members, half_life in groups]
    return np.stack(columns, axis=1).astype(np.float32)


def _log_odds(
    members: np.ndarray, half_life: float, late: np.ndarray, date: np.ndarray
) -> np.ndarray:
    """float64 [n]: one column of `late_rates`; date: int64 [n], days from 0."""
    _, group = np.unique(members, return_inverse=True)
    days, groups = date.max() + 1, group.max() + 1
    cell = date * groups + group
    flown = np.bincount(cell, minlength=days * groups).reshape(days, groups)
    late_ones = np.bincount(cell, late, minlength=days * groups).reshape(days, groups)
    rates = np.empty((days, groups))
    seen, seen_late = np.zeros((2, groups))
    for today in range(days):
        common = (seen_late.sum() + PRIOR * TYPICAL) / (seen.sum() + PRIOR)
        rates[today] = (seen_late + PRIOR * common) / (seen + PRIOR)
        seen = (seen + flown[today]) * 0.5 ** (1 / half_life)
        seen_late = (seen_late + late_ones[today]) * 0.5 ** (1 / half_life)
    return np.log(rates / (1 - rates))[date, group]
