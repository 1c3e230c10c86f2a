# SPDX-License-Identifier: Apache-2.0
"""The flights example's data: what is read, what is left out, the cache, and the ranks' shares.

Neither MPI nor TensorFlow is imported.
"""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "estimator_examples"
sys.path.insert(0, str(EXAMPLES))

from flights import batches, data, features  # noqa: E402

AFTERWARDS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")

LOAD_AND_PRINT = """
import sys, zlib
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from flights import data
flights = data.load(Path(sys.argv[2]))
print(*(zlib.crc32(array.tobytes()) for array in vars(flights).values()))
"""


def marks(flights: data.Flights) -> str:
    """A checksum of each array, as LOAD_AND_PRINT prints them."""
    return " ".join(str(zlib.crc32(array.tobytes())) for array in vars(flights).values())


def read_whole(path: Path) -> bool:
    """Whether there is a file and every array in it can be read; a torn file raises."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file, np.load(file, allow_pickle=False) as arrays:
        return all(len(arrays[name]) for name in arrays.files)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A data directory that two processes began to prepare at once, and what each loaded."""
    folder = tmp_path_factory.mktemp("data") / "cache"
    command = [sys.executable, "-c", LOAD_AND_PRINT, str(EXAMPLES), str(folder)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    cache = data.cache_path(folder, data.source_folder())
    while any(process.poll() is None for process in processes):
        read_whole(cache)
    outputs = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return folder, outputs


@pytest.fixture(scope="module")
def flights(prepared: tuple[Path, list[str]]) -> data.Flights:
    return data.load(prepared[0])


def test_two_processes_prepare_one_whole_file(
    prepared: tuple[Path, list[str]], flights: data.Flights
) -> None:
    folder, outputs = prepared
    assert outputs[0] == outputs[1] == marks(flights)
    cache = data.cache_path(folder, data.source_folder())
    assert sorted(path.name for path in folder.iterdir()) == sorted([cache.name, "prepare.lock"])
    assert folder.stat().st_mode & 0o077 == 0


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        data.write_atomically(tmp_path / "flights.npz", fail)
    assert list(tmp_path.iterdir()) == []


def test_preparing_again_gives_the_same_arrays(flights: data.Flights) -> None:
    assert marks(data.build(data.source_folder())) == marks(flights)


def test_counts(flights: data.Flights) -> None:
    train, test = data.split(flights, "test")
    assert len(flights) == 327_346
    assert round(float(flights.late.mean()), 3) == 0.245
    assert round(len(test) / len(flights), 3) == 0.123
    assert len(train) + len(test) == len(flights)
    assert train.day.max() == 1115 and test.day.min() == 1116 and test.day.max() == 1231


@pytest.mark.parametrize("held_out", sorted(set(data.SPLITS) - {"test"}))
def test_choosing_never_sees_the_test_part(flights: data.Flights, held_out: str) -> None:
    train, rest = data.split(flights, held_out)
    assert len(rest) > 20_000
    assert train.day.max() < rest.day.min() and rest.day.max() <= 1115


def test_numbers_are_normalised_with_the_train_part(flights: data.Flights) -> None:
    train, test = data.split(flights, "test")
    for part in (train, test):
        assert np.isfinite(part.numeric).all()
    np.testing.assert_allclose(train.numeric.mean(axis=0, dtype=np.float64), 0, atol=1e-4)
    known = ~np.isnan(flights.numeric).any(axis=0)
    np.testing.assert_allclose(train.numeric[:, known].std(axis=0, dtype=np.float64), 1, atol=1e-3)
    assert np.abs(test.numeric.mean(axis=0)).max() > 0.1  # winter is not the average


@pytest.fixture(scope="module")
def tables() -> tuple[list[features.Row], list[features.Row]]:
    """Two days of the schedule, and the weather."""
    folder = data.source_folder()
    days = ("7", "8")
    scheduled = [
        row
        for row in data.rows(folder / "flights.csv.zip")
        if row["month"] == "2" and row["day"] in days
    ]
    return scheduled, list(data.rows(folder / "weather.csv"))


def described(flights: list[features.Row], weather: list[features.Row]) -> list[list[float]]:
    """The features of these flights."""
    hours = features.Hours()
    observed, schedule = features.Weather(weather, hours), features.Schedule(flights, hours)
    return [
        features.categories(row, None) + features.numbers(row, None, observed, schedule)
        for row in flights
    ]


def test_features_need_nothing_from_after_departure(
    tables: tuple[list[features.Row], list[features.Row]],
) -> None:
    flights, weather = tables
    known = [{k: v for k, v in row.items() if k not in AFTERWARDS} for row in flights]
    np.testing.assert_array_equal(described(known, weather), described(flights, weather))


def test_features_use_no_weather_from_the_scheduled_hour_on(
    tables: tuple[list[features.Row], list[features.Row]],
) -> None:
    flights, weather = tables
    hours = features.Hours()
    first = min(hours[row["time_hour"]] for row in flights)
    before = [row for row in weather if hours[row["time_hour"]] < first]
    morning = [i for i, row in enumerate(flights) if hours[row["time_hour"]] == first]
    later = [i for i, row in enumerate(flights) if hours[row["time_hour"]] > first + 6]
    all_known, cut = np.array(described(flights, weather)), np.array(described(flights, before))
    np.testing.assert_array_equal(cut[morning], all_known[morning])
    temperature = len(features.CATEGORICAL) + features.NUMERIC.index("temp")
    assert morning and np.isnan(cut[later, temperature]).all()


def test_hashes_tell_values_apart(flights: data.Flights) -> None:
    distinct = {
        name: len(np.unique(flights.categorical[:, i]))
        for i, name in enumerate(features.CATEGORICAL)
    }
    expected = {"carrier": 16, "origin": 3, "dest": 104, "tailnum": 4037, "weekday": 7}
    assert expected.items() <= distinct.items()
    assert flights.categorical.min() >= 0


def stream(records: int, batch: int, steps: int, rank: int, size: int, seed: int = 3) -> np.ndarray:
    """int64 [steps, batch]: one rank's positions."""
    source = batches.positions(records, batch, seed=seed, rank=rank, size=size)
    return np.array([next(source) for _ in range(steps)])


@pytest.mark.parametrize(("records", "batch", "size"), [(96, 8, 2), (96, 8, 3), (101, 7, 4)])
def test_ranks_share_every_global_batch(records: int, batch: int, size: int) -> None:
    steps = batches.steps_of(2, records, batch, size)
    shares = [stream(records, batch, steps, rank, size) for rank in range(size)]
    together = np.concatenate(shares, axis=1)
    np.testing.assert_array_equal(together, stream(records, batch * size, steps, 0, 1))
    order = together.ravel()
    assert 2 * records - len(order) < batch * size
    assert sorted(order[:records]) == list(range(records))  # each record once: nothing twice
    assert len(set(order[records:])) == len(order) - records


def test_shuffles_depend_on_seed_and_pass_only() -> None:
    again = stream(64, 16, 8, 0, 1)
    np.testing.assert_array_equal(again, stream(64, 16, 8, 0, 1))
    assert (again != stream(64, 16, 8, 0, 1, seed=4)).any()
    assert (again[:4] != again[4:]).any()


def test_a_batch_may_span_several_passes() -> None:
    wide = stream(5, 12, 2, 0, 1)
    assert sorted(np.bincount(wide.ravel(), minlength=5)) == [4, 5, 5, 5, 5]
