# SPDX-License-Identifier: Apache-2.0
"""input_fn of the Estimator: this rank's share of the TFRecord shards, in batches of flights."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import tensorflow as tf
from features import CATEGORICAL, NUMERIC
from shards import Shards

InputFn = Callable[[], tf.data.Dataset]

SHUFFLED = 2048  # records that are shuffled at a time, 131,072 flights
EVALUATED = 4096  # flights that are evaluated at a time

_LAYOUT = {
    "categorical": tf.io.FixedLenSequenceFeature([len(CATEGORICAL)], tf.int64, allow_missing=True),
    "numeric": tf.io.FixedLenSequenceFeature([len(NUMERIC)], tf.float32, allow_missing=True),
    "late": tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True),
}


def parse(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """The n flights of a record.

    Returns:
      ({"categorical": int32 [n, fields], "numeric": float32 [n, k]}, late float32 [n])
    """
    features = tf.io.parse_single_example(record, _LAYOUT)
    late = features.pop("late")
    features["categorical"] = tf.cast(features["categorical"], tf.int32)
    return features, late


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Without the thread that tunes a dataset: there is nothing to tune in these.

    That thread sleeps for seconds at a time, and the end of an iterator waits for it.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def training(hvd: ModuleType, shards: Shards, batch: int, seed: int, first_pass: int) -> InputFn:
    """Batches for ever, in another order in every pass."""

    def input_fn() -> tf.data.Dataset:
        records = hvd.data.shard(  # hvd: this rank's share of the files
            shards.files("train"),
            shuffle_buffer=SHUFFLED,
            seed=seed,
            epochs=None,
            first_epoch=first_pass,
        )
        return untuned(records.map(parse).rebatch(batch).prefetch(2))

    return input_fn


def evaluation(shards: Shards, part: str) -> InputFn:
    """Every flight of a part once, the same on every rank: they take turns."""

    def input_fn() -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(shards.files(part))
        return records.map(parse).rebatch(EVALUATED).prefetch(2)

    return input_fn
