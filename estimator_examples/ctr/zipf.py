# SPDX-License-Identifier: Apache-2.0
"""Zipf's law over 1 to n for any n, and how large n must be for a number of distinct values."""

from __future__ import annotations

import numpy as np

WIDEST = 1 << 40  # support() gives no more
_EXACT = 1000  # terms that are summed one by one; the rest is an integral


class Zipf:
    """Draws k from 1 to n with a probability in proportion to k ** -s.

    Rejection-inversion: W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates
    from monotone discrete distributions" (1996). It needs no table, so n may be 10 ** 9.
    """

    def __init__(self, s: float, n: int) -> None:
        """s: more than 0, and not 1; n: 1 or more."""
        if s <= 0 or s == 1 or n < 1:
            raise ValueError(f"Zipf(s={s}, n={n}): s must be above 0 and not 1, n at least 1")
        self.s, self.n = s, n
        self._first = self._area(1.5) - 1.0  # where the bar of k = 1 begins
        self._last = self._area(n + 0.5)
        self._sure = 2.0 - self._place(self._area(2.5) - 2.0**-s)

    def _area(self, x: np.ndarray | float) -> np.ndarray | float:
        """The integral of x ** -s from 1 to x."""
        return np.expm1((1 - self.s) * np.log(x)) / (1 - self.s)

    def _place(self, area: np.ndarray | float) -> np.ndarray | float:
        """The x up to which that integral is `area`."""
        return np.exp(np.log1p((1 - self.s) * area) / (1 - self.s))

    def draw(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """int64 [count]."""
        drawn = np.empty(count, np.int64)
        missing = np.arange(count)
        while missing.size:
            area = generator.uniform(self._first, self._last, missing.size)
            place = self._place(area)
            k = np.clip(np.floor(place + 0.5), 1, self.n)
            fits = (k - place <= self._sure) | (area >= self._area(k + 0.5) - k**-self.s)
            drawn[missing[fits]] = k[fits]
            missing = missing[~fits]
        return drawn


def expected_distinct(s: float, n: int, draws: float) -> float:
    """How many different values so many draws of Zipf(s, n) have on average."""
    head = np.arange(1, min(n, _EXACT) + 1, dtype=np.float64)
    weights, counts = head**-s, np.ones_like(head)
    if n > _EXACT:
        # Bars of equal width in the logarithm; each stands for `counts` values.
        edges = np.exp(np.linspace(np.log(_EXACT + 0.5), np.log(n + 0.5), 4097))
        counts = np.concatenate([counts, np.diff(edges)])
        weights = np.concatenate([weights, np.sqrt(edges[1:] * edges[:-1]) ** -s])
    share = weights / np.sum(weights * counts)
    return float(np.sum(counts * -np.expm1(-draws * share)))


def support(s: float, distinct: int, draws: float) -> int:
    """The n with which so many draws have so many distinct values, or WIDEST.

    A sample never shows all values of a wide distribution. So n is larger than what was seen.
    """
    low, high = distinct, distinct
    while high < WIDEST and expected_distinct(s, high, draws) < distinct - 0.5:
        low, high = high, min(2 * high, WIDEST)
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        enough = expected_distinct(s, middle, draws) >= distinct - 0.5
        low, high = (low, middle) if enough else (middle, high)
    return high
