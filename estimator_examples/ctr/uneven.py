# SPDX-License-Identifier: Apache-2.0
"""Clicks as they come: each rank has a log of its own, which never says how long it will be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from generator import CARDINALITIES, INTEGERS, Generator
from inputs import untuned
from rows import NUMBERS, InputFn, as_features

FEWEST, MOST = 80, 120  # batches of a log, where nobody says how many

SIGNATURE = (
    as_features(
        tf.TensorSpec([None, len(CARDINALITIES)], tf.int64),
        tf.TensorSpec([None, INTEGERS], tf.int32),
        tf.TensorSpec([None], tf.float32),
    ),
    tf.TensorSpec([None], tf.float32),
)


def length(seed: int, rank: int) -> int:
    """When a rank's log ends, as chance will have it: after so many batches."""
    return int(np.random.default_rng([seed, rank]).integers(FEWEST, MOST, endpoint=True))


def training(generator: Generator, rank: int, batches: int, batch: int, per_hour: int) -> InputFn:
    """A rank's own log as it comes: it does not say how many batches there will be.

    per_hour: batches until the generator's next hour.
    """

    def as_they_come() -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        for number in range(batches):
            made = generator.records(
                batch, NUMBERS["stream"], rank, number, hour=number // per_hour
            )
            yield as_features(made.categorical, made.integers, made.logits), made.labels

    def input_fn() -> tf.data.Dataset:
        made = tf.data.Dataset.from_generator(as_they_come, output_signature=SIGNATURE)
        return untuned(made.prefetch(2))

    return input_fn
