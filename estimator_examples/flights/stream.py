# SPDX-License-Identifier: Apache-2.0
"""The year as an unbounded input: flights in time order, evaluated first and then trained on.

The source is a generator of days that never says how many there will be. Blocks of it are first
evaluated, all but the very first, and then trained on, with every flight once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from data import Flights
from features import CATEGORICAL, NUMERIC
from inputs import EVALUATED, InputFn

Batch = tuple[dict[str, np.ndarray], np.ndarray]


class Moments:
    """Mean and spread of each number over all flights seen so far, unknown values left out."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = np.zeros((3, len(NUMERIC)))

    def add(self, numeric: np.ndarray) -> None:
        """Count these too: float32 [n, k], NaN where unknown."""
        self._count += (~np.isnan(numeric)).sum(axis=0)
        self._sum += np.nansum(numeric, axis=0, dtype=np.float64)
        self._squares += np.nansum(np.square(numeric, dtype=np.float64), axis=0)

    def normalised(self, numeric: np.ndarray) -> np.ndarray:
        """float32 [n, k]: 0 for the mean and for what is unknown."""
        count = np.maximum(self._count, 1)
        mean = self._sum / count
        variance = self._squares / count - mean**2
        # A number that has hardly varied yet must not be blown up when it does.
        spread = np.sqrt(np.where(variance > 1e-6 * (1 + mean**2), variance, 1.0))
        return np.nan_to_num((numeric - mean) / spread, nan=0.0).astype(np.float32)


def days(flights: Flights) -> Iterator[Flights]:
    """Day after day, numbers normalised with the days before; those of the first day with it."""
    moments = Moments()
    ordered = flights.take(np.argsort(flights.day, kind="stable"))
    _, starts = np.unique(ordered.day, return_index=True)
    for first, last in zip(starts, [*starts[1:], len(ordered)]):
        day = ordered.take(slice(first, last))
        if first == 0:
            moments.add(day.numeric)
        yield Flights(day.categorical, moments.normalised(day.numeric), day.late, day.day)
        if first > 0:
            moments.add(day.numeric)


def blocks(source: Iterable[Flights], flights: int) -> Iterator[Flights]:
    """The same flights, so many at a time; the last time what is left."""
    held: list[Flights] = []
    for more in source:
        held.append(more)
        while sum(map(len, held)) >= flights:
            together = joined(held)
            yield together.take(slice(flights))
            held = [together.take(slice(flights, None))]
    if sum(map(len, held)):
        yield joined(held)


def joined(parts: list[Flights]) -> Flights:
    """One after another."""
    return Flights(*(np.concatenate(arrays) for arrays in zip(*(vars(p).values() for p in parts))))


class Stream:
    """The blocks of a source, held from when they are first asked for until they were evaluated.

    Training asks from a thread of TensorFlow, and is ahead of the step that is being taken.
    """

    def __init__(self, source: Iterable[Flights], flights: int) -> None:
        """flights: in a block."""
        self._source = blocks(source, flights)
        self._held: dict[int, Optional[Flights]] = {}
        self._read = 0
        self._lock = threading.Lock()

    def block(self, number: int) -> Optional[Flights]:
        """The block with that number, from 0; None after the last."""
        with self._lock:
            while self._read <= number:
                self._held[self._read] = next(self._source, None)
                self._read += 1
            return self._held[number]

    def forget_before(self, number: int) -> None:
        """Blocks that have been evaluated and trained on."""
        with self._lock:
            for old in [held for held in self._held if held < number]:
                del self._held[old]

    def shares(self, batch: int, rank: int, size: int) -> Iterator[Batch]:
        """One rank's slices of the global batches, of `batch` flights; the last may be smaller."""
        number = 0
        while (block := self.block(number)) is not None:
            for start in range(0, len(block), batch * size):
                whole = np.arange(start, min(start + batch * size, len(block)))
                yield as_batch(block, np.array_split(whole, size)[rank])
            number += 1


def as_batch(flights: Flights, which: Any) -> Batch:
    """Features and labels of the flights that `which` selects."""
    part = flights.take(which)
    return {"categorical": part.categorical, "numeric": part.numeric}, part.late


SIGNATURE = (
    {
        "categorical": tf.TensorSpec([None, len(CATEGORICAL)], tf.int32),
        "numeric": tf.TensorSpec([None, len(NUMERIC)], tf.float32),
    },
    tf.TensorSpec([None], tf.float32),
)


def training(hvd: ModuleType, stream: Stream, batch: int) -> InputFn:
    """This rank's share of every batch, for as long as the stream goes on."""

    def input_fn() -> tf.data.Dataset:
        shares = tf.data.Dataset.from_generator(
            lambda: (s for s in stream.shares(batch, hvd.rank(), hvd.size()) if len(s[1])),
            output_signature=SIGNATURE,
        )
        return hvd.data.equal_steps(shares)  # hvd: nobody knows the end, and all meet it together

    return input_fn


def evaluation(flights: Optional[Flights]) -> tf.data.Dataset:
    """These flights in order, the same on every rank; nothing for None."""

    def batches() -> Iterator[Batch]:
        for start in range(0, 0 if flights is None else len(flights), EVALUATED):
            yield as_batch(flights, slice(start, start + EVALUATED))

    return tf.data.Dataset.from_generator(batches, output_signature=SIGNATURE)
