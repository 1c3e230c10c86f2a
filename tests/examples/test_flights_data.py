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
from packaging.requirements import Requirement

EXAMPLES = Path(__file__).resolve().parents[2] / "estimator_examples"
sys.path.insert(0, str(EXAMPLES))

from flights import batches, data, features, history  # noqa: E402

AFTERWARDS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")

LOAD_AND_PRINT = """
import sys, zlib
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from flights import data
flights = data.load(Path(sys.argv[2]))
print(*(zlib.crc32(array.tobytes()) for array in vars(flights).values()))
"""


@pytest.mark.parametrize("version", ["2.13.0", "2.14.0", "2.15.0"])
def test_requirements_keep_the_estimators_of_an_older_tensorflow(version: str) -> None:
    """Those of 2.15 do not work in TensorFlow 2.13, and pip keeps what meets a requirement."""
    lines = (EXAMPLES / "flights" / "requirements.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in lines if not line.startswith("#") and line]
    (found,) = (each for each in wanted if each.name == "tensorflow-estimator")
    assert found.specifier.contains(version)


def marks(flights: data.Flights) -> str:
    """A checksum of each array, as LOAD_AND_PRINT prints them."""
    return " ".join(str(zlib.crc32(array.tobytes())) for array in vars(flights).values())


def read_whole(path: Path) -> bool:
    """Whether there is a file and every array in it can be read. A torn file raises."""
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


def test_a_damaged_file_is_made_again(
    flights: data.Flights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data.cache_path(tmp_path, data.source_folder())
    monkeypatch.setattr(data, "build", lambda folder: flights)
    for damaged in (b"", b"PK\x03\x04 and no more"):
        path.write_bytes(damaged)
        assert marks(data.load(tmp_path)) == marks(flights)
        assert marks(data.load(tmp_path)) == marks(flights)


def test_prepared_flights_need_no_lock(
    prepared: tuple[Path, list[str]], flights: data.Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be another user's, or of a file system that is only read."""

    def locked(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(data, "only_one", locked)
    assert marks(data.load(prepared[0])) == marks(flights)


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
    train, validation, test = data.split(flights, "test")
    assert len(flights) == 327_346
    assert round(float(flights.late.mean()), 3) == 0.245
    assert round(len(test) / len(flights), 3) == 0.123
    assert len(train) + len(validation) + len(test) == len(flights)
    assert train.day.max() == 1115 and test.day.min() == 1116 and test.day.max() == 1231


@pytest.mark.parametrize("held_out", sorted(data.SPLITS))
def test_validation_has_days_of_its_own_before_the_held_out_part(
    flights: data.Flights, held_out: str
) -> None:
    train, validation, rest = data.split(flights, held_out)
    days = [set(part.day.tolist()) for part in (train, validation, rest)]
    assert not days[0] & days[1] and max(days[0] | days[1]) < min(days[2])
    assert len(validation) / (len(train) + len(validation)) == pytest.approx(0.1, abs=0.01)
    weekday = features.CATEGORICAL.index("weekday")
    assert len(set(validation.categorical[:, weekday].tolist())) == 7
    # One flight in two has the same days.
    halved = data.split(flights.take(slice(None, None, 2)), held_out)[1]
    assert set(halved.day.tolist()) == days[1]


@pytest.mark.parametrize("held_out", sorted(set(data.SPLITS) - {"test"}))
def test_choosing_never_sees_the_test_part(flights: data.Flights, held_out: str) -> None:
    *_, rest = data.split(flights, held_out)
    assert len(rest) > 20_000 and rest.day.max() <= 1115


def test_numbers_are_normalised_with_the_train_part(flights: data.Flights) -> None:
    parts = data.split(flights, "test")
    for part in parts:
        assert np.isfinite(part.numeric).all()
    train, _, test = parts
    np.testing.assert_allclose(train.numeric.mean(axis=0, dtype=np.float64), 0, atol=1e-4)
    known = ~np.isnan(flights.numeric).any(axis=0)
    np.testing.assert_allclose(train.numeric[:, known].std(axis=0, dtype=np.float64), 1, atol=1e-3)
    assert np.abs(test.numeric.mean(axis=0)).max() > 0.1  # winter is not the average


def made_up_past() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Airports, lateness and days of 400 flights in no order."""
    rng = np.random.default_rng(4)
    day = rng.choice(np.array([130, 131, 201, 202, 203], np.int16), 400)
    return rng.integers(0, 3, 400), rng.integers(0, 2, 400).astype(np.float32), day


def test_late_rates_count_the_days_before_by_their_age() -> None:
    airport, late, day = made_up_past()
    found = history.late_rates([(airport, 2.0)], late, day)[:, 0]
    order = [130, 131, 201, 202, 203]  # the days after one another
    for i in range(0, 400, 7):
        ages = np.array([order.index(day[i]) - order.index(other) for other in day])
        weight = np.where(ages > 0, 0.5 ** (ages / 2.0), 0.0)
        mine = weight * (airport == airport[i])
        everyone = (weight @ late + 20 * 0.2) / (weight.sum() + 20)
        rate = (mine @ late + 20 * everyone) / (mine.sum() + 20)
        assert found[i] == pytest.approx(np.log(rate / (1 - rate)), rel=1e-5)


def test_late_rates_know_nothing_of_a_flights_own_day_or_later() -> None:
    airport, late, day = made_up_past()
    groups = [(airport, 1.0), (airport, 14.0)]
    before = history.late_rates(groups, late, day)
    other = np.where(day >= 201, 1 - late, late).astype(np.float32)
    after = history.late_rates(groups, other, day)
    np.testing.assert_array_equal(after[day <= 201], before[day <= 201])
    assert (after[day > 201] != before[day > 201]).any()


def test_the_flights_late_rates_are_of_other_days(flights: data.Flights) -> None:
    """A leak would show in the prepared arrays as a rate that follows the flight's own outcome."""
    for name, days in features.HISTORY:
        column = flights.numeric[:, features.NUMERIC.index(f"late_{name}_{days}d")]
        group = flights.categorical[:, features.CATEGORICAL.index(name)]
        cell = flights.day.astype(np.int64) << 32 | group
        _, first, which = np.unique(cell, return_index=True, return_inverse=True)
        np.testing.assert_array_equal(column, column[first][which])  # one value a day and group
        assert len(np.unique(column[flights.day == 101])) == 1  # nothing before the first day


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
