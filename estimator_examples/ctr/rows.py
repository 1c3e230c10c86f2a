# SPDX-License-Identifier: Apache-2.0
"""The made-up clicks as TFRecord files, written once on each host: what the ranks read.

A record is the bytes of 64 clicks. So reading takes a small part of a training step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import tensorflow as tf
import whole
from generator import CARDINALITIES, INTEGERS, Generator, Records
from inputs import untuned

FORMAT = 1  # raise it when the files change
BLOCK = 64  # clicks in a record
# So that 2, 4, 8 or 16 ranks train on whole files.
FILES = {"train": 16, "held_out": 4}
NUMBERS = {"train": 0, "held_out": 1, "stream": 2}  # their first number, to the generator
_AT_ONCE = 8192  # clicks that are generated at a time

LAYOUT = np.dtype(
    [
        ("categorical", "<i8", len(CARDINALITIES)),
        ("integers", "<i4", INTEGERS),
        ("labels", "<f4"),
        ("logits", "<f4"),
    ]
)
_WORDS = LAYOUT.itemsize // 4
_OF_IDS = 2 * len(CARDINALITIES)

Features = dict[str, tf.Tensor]
InputFn = Callable[[], tf.data.Dataset]


def encode(records: Records) -> bytes:
    """The clicks one after another, each in LAYOUT."""
    together = np.empty(len(records), LAYOUT)
    for name in LAYOUT.names:
        together[name] = getattr(records, name)
    return together.tobytes()


def decode(blocks: tf.Tensor) -> tuple[Features, tf.Tensor]:
    """The clicks of string [k].

    Returns:
      ({"categorical": int64 [n, 26], "integers": int32 [n, 13], "logits": float32 [n]},
      labels float32 [n])
    """
    words = tf.reshape(tf.io.decode_raw(blocks, tf.int32), [-1, _WORDS])
    ids = tf.reshape(words[:, :_OF_IDS], [-1, len(CARDINALITIES), 2])
    integers = words[:, _OF_IDS : _OF_IDS + INTEGERS]
    labels, logits = (tf.bitcast(words[:, place], tf.float32) for place in (_WORDS - 2, _WORDS - 1))
    return as_features(tf.bitcast(ids, tf.int64), integers, logits), labels


def as_features(categorical: tf.Tensor, integers: tf.Tensor, logits: tf.Tensor) -> Features:
    """By the names that the models look for. The logits are for the ceiling of an evaluation."""
    return {"categorical": categorical, "integers": integers, "logits": logits}


def names(part: str) -> list[str]:
    """The names of one part's files."""
    count = FILES[part]
    return [f"{part}-{number:05d}-of-{count:05d}.tfrecord" for number in range(count)]


def fill(folder: Path, generator: Generator, clicks: dict[str, int]) -> whole.Facts:
    """Write so many clicks of each part into the folder, whole records only."""
    for part, count in clicks.items():
        blocks = np.array_split(np.arange(count // BLOCK), FILES[part])
        for name, of_file in zip(names(part), blocks):
            with tf.io.TFRecordWriter(str(folder / name)) as file:
                for start in range(0, len(of_file), _AT_ONCE // BLOCK):
                    some = of_file[start : start + _AT_ONCE // BLOCK]
                    made = encode(generator.records(len(some) * BLOCK, NUMBERS[part], int(some[0])))
                    for number in range(len(some)):
                        begin = number * BLOCK * LAYOUT.itemsize
                        file.write(made[begin : begin + BLOCK * LAYOUT.itemsize])
    return {"clicks": {part: count // BLOCK * BLOCK for part, count in clicks.items()}}


def prepare_on_all(
    hvd: ModuleType, data_dir: Path, zipf: float, seed: int, clicks: dict[str, int]
) -> Path:
    """The folder with so many clicks of each part; every rank calls it."""
    sizes = "-".join(f"{part}-{count}" for part, count in clicks.items())
    folder = data_dir / f"clicks-{FORMAT}-{zipf}-{seed}-{sizes}"

    def made(temporary: Path) -> whole.Facts:
        print(f"making {sum(clicks.values()):,} clicks, once", file=sys.stderr)
        return fill(temporary, Generator(zipf, seed), clicks)

    whole.prepare_on_all(hvd, folder, FORMAT, made)
    return folder


def files(folder: Path, part: str) -> list[str]:
    """Their paths."""
    return [str(folder / name) for name in names(part)]


def blocks_of(batch: int) -> int:
    """The records that make a batch of so many clicks."""
    if batch % BLOCK:
        raise argparse.ArgumentTypeError(f"{batch} is no multiple of {BLOCK}, a record's clicks")
    return batch // BLOCK


def training(hvd: ModuleType, folder: Path, batch: int) -> InputFn:
    """This rank's batches, for ever."""

    def input_fn() -> tf.data.Dataset:
        records = hvd.data.shard(files(folder, "train"), epochs=None)  # hvd: this rank's share
        return untuned(records.batch(blocks_of(batch)).map(decode).prefetch(2))

    return input_fn


def evaluation(folder: Path, batch: int = 4096) -> InputFn:
    """Every click of the part that is held out, the same on every rank: they take turns."""

    def input_fn() -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(files(folder, "held_out"))
        return records.batch(blocks_of(batch)).map(decode).prefetch(2)

    return input_fn
