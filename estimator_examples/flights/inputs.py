# SPDX-License-Identifier: Apache-2.0
"""input_fn of an Estimator from arrays of flights: batches by position, nothing in the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf
from data import Flights
from features import CATEGORICAL, NUMERIC

InputFn = Callable[[], tf.data.Dataset]


def input_fn(part: Flights, batches: Callable[[], Iterable[np.ndarray]]) -> InputFn:
    """Feed the records whose positions `batches()` yields.

    Each element: ({"categorical": int32 [b, fields], "numeric": float32 [b, k]}, late float32 [b]).
    """

    def records() -> Iterable[tuple[dict[str, np.ndarray], np.ndarray]]:
        for which in batches():
            features = {
                "categorical": part.categorical[which],
                "numeric": part.numeric[which],
            }
            yield features, part.late[which]

    def make() -> tf.data.Dataset:
        signature = (
            {
                "categorical": tf.TensorSpec([None, len(CATEGORICAL)], tf.int32),
                "numeric": tf.TensorSpec([None, len(NUMERIC)], tf.float32),
            },
            tf.TensorSpec([None], tf.float32),
        )
        return tf.data.Dataset.from_generator(records, output_signature=signature)

    return make


def in_order(part: Flights, batch: int = 8192) -> InputFn:
    """Feed every record once, for evaluation."""
    return input_fn(part, lambda: np.array_split(np.arange(len(part)), -(-len(part) // batch)))
