# SPDX-License-Identifier: Apache-2.0
"""The flights as TFRecord shards, written once on each host: what its ranks read.

A record is a tf.train.Example of up to 64 flights, which a shuffle with a fixed seed has put
together. With one flight in a record, reading would take half as long as training does.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Optional

import numpy as np
import tensorflow as tf
from data import Flights, only_one

FORMAT = 2  # raise it when the files change
BLOCK = 64  # flights in a record
# So that 2, 4, 8 or 16 ranks train on whole files.
SHARDS = {"train": 16, "validation": 4, "held_out": 4}
STAMP = "stamp.json"  # is written last and describes the other files


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


def find(folder: Path) -> Optional[Shards]:
    """The shards in this folder; None when there are none, or not as its stamp describes them."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        sizes = {path.name: path.stat().st_size for path in folder.glob("*.tfrecord")}
    except (OSError, ValueError):
        return None
    if stamp.get("format") != FORMAT or stamp.get("bytes") != sizes:
        return None
    return Shards(folder, stamp["flights"])


def write(folder: Path, parts: dict[str, Flights]) -> None:
    """Write the shards so that a reader finds all of them or none, whatever is there already."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=folder.name + "."))
    try:
        for part, flights in parts.items():
            write_part(temporary, part, flights)
        stamp = {
            "format": FORMAT,
            "flights": {part: len(flights) for part, flights in parts.items()},
            "bytes": {path.name: path.stat().st_size for path in temporary.iterdir()},
        }
        (temporary / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
        shutil.rmtree(folder, ignore_errors=True)  # half-written, damaged or of another format
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def prepare(folder: Path, parts: Callable[[], dict[str, Flights]]) -> None:
    """Write the shards where they are missing; of several processes one does, and others wait."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(folder.with_name(folder.name + ".lock")):
        if find(folder) is None:
            print("reading the flights and writing shards, once: 20 to 60 s", file=sys.stderr)
            write(folder, parts())


def prepare_on_all(
    hvd: ModuleType, folder: Path, parts: Callable[[], dict[str, Flights]]
) -> Shards:
    """The shards in this folder, prepared by one rank of each host; every rank calls it.

    Raises:
      SystemExit: on every rank, when one could not write or read them; says which and why.
    """
    failure = ""
    try:
        if hvd.local_rank() == 0:  # hvd: one rank of each host
            prepare(folder, parts)
    except (OSError, SystemExit, tf.errors.OpError) as error:
        failure = f"rank {hvd.rank()} cannot prepare {folder}: {error}"
    stop_on_failure(hvd, failure)  # hvd: the others wait here
    found = find(folder)
    stop_on_failure(hvd, "" if found else f"rank {hvd.rank()} finds no whole shards in {folder}")
    return found


def stop_on_failure(hvd: ModuleType, failure: str) -> None:
    """Wait for all ranks; end the program on every one of them when one has failed."""
    failures = [text for text in hvd.allgather_object(failure) if text]
    if failures:
        raise SystemExit("; ".join(failures) if hvd.rank() == 0 else 1)
