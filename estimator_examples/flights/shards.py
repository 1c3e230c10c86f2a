# SPDX-License-Identifier: Apache-2.0
"""The flights as TFRecord shards, written once on each host: what its ranks read.

A record is a tf.train.Example of up to 64 flights, which a shuffle with a fixed seed has put
together. With one flight in a record, reading would take half as long as training does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Optional

import numpy as np
import tensorflow as tf
import whole
from data import Flights
from whole import STAMP as STAMP

FORMAT = 2  # raise it when the files change
BLOCK = 64  # flights in a record
# So that 2, 4, 8 or 16 ranks train on whole files.
SHARDS = {"train": 16, "validation": 4, "held_out": 4}


@dataclass(frozen=True)
class Shards:
    """Whole shards: `flights` has the number of flights in each part, by the names of SHARDS."""

    folder: Path
    flights: dict[str, int]

    def files(self, part: str) -> list[str]:
        """The paths of one part."""
        return [str(self.folder / name) for name in names(part)]


def names(part: str) -> list[str]:
    """The names of one part's files."""
    count = SHARDS[part]
    return [f"{part}-{number:05d}-of-{count:05d}.tfrecord" for number in range(count)]


def example(block: Flights) -> bytes:
    """The record of these flights, the same bytes on every host."""
    integers, floats = tf.train.Int64List, tf.train.FloatList
    features = {
        "categorical": tf.train.Feature(int64_list=integers(value=block.categorical.ravel())),
        "numeric": tf.train.Feature(float_list=floats(value=block.numeric.ravel())),
        "late": tf.train.Feature(float_list=floats(value=block.late)),
    }
    record = tf.train.Example(features=tf.train.Features(feature=features))
    return record.SerializeToString(deterministic=True)


def write_part(folder: Path, part: str, flights: Flights) -> None:
    """Write the flights, in an order of their own, block after block and file after file."""
    shuffled = flights.take(np.random.default_rng(0).permutation(len(flights)))
    starts = np.array_split(np.arange(0, len(flights), BLOCK), SHARDS[part])
    for name, of_file in zip(names(part), starts):
        with tf.io.TFRecordWriter(str(folder / name)) as file:
            for start in of_file:
                file.write(example(shuffled.take(slice(start, start + BLOCK))))


def found(folder: Path, facts: Optional[whole.Facts]) -> Optional[Shards]:
    """The shards in a folder whose stamp says this."""
    return facts and Shards(folder, facts["flights"])


def find(folder: Path) -> Optional[Shards]:
    """The shards in this folder; None when there are none, or not as its stamp describes them."""
    return found(folder, whole.find(folder, FORMAT))


def fill(folder: Path, parts: dict[str, Flights]) -> whole.Facts:
    """Write all parts into this folder."""
    for part, flights in parts.items():
        write_part(folder, part, flights)
    return {"flights": {part: len(flights) for part, flights in parts.items()}}


def write(folder: Path, parts: dict[str, Flights]) -> None:
    """Write the shards so that a reader finds all of them or none, whatever is there already."""
    whole.write(folder, FORMAT, lambda temporary: fill(temporary, parts))


def prepare_on_all(
    hvd: ModuleType, folder: Path, parts: Callable[[], dict[str, Flights]]
) -> Shards:
    """The shards in this folder, prepared by one rank of each host; every rank calls it.

    Raises:
      SystemExit: on every rank, when one could not write or read them; says which and why.
    """

    def written(temporary: Path) -> whole.Facts:
        print("reading the flights and writing shards, once: 20 to 60 s", file=sys.stderr)
        return fill(temporary, parts())

    return found(folder, whole.prepare_on_all(hvd, folder, FORMAT, written))
