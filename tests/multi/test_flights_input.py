# SPDX-License-Identifier: Apache-2.0
"""What the flights example reads: shards that are written once, and the year as a stream."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2] / "estimator_examples" / "flights"))

import shards
import stream
from best import Best, best_checkpoint
from curve import Curve
from data import Flights
from features import CATEGORICAL, NUMERIC
from inputs import evaluation, parse, training

import hvd_tf as hvd

RANKS = (2,)


def made_up(records: int, days: int = 40) -> Flights:
    """Flights that can be told apart by their first category, on days in no order."""
    rng = np.random.default_rng(records)
    categorical = rng.integers(0, 2**31 - 1, (records, len(CATEGORICAL)), dtype=np.int32)
    categorical[:, 0] = np.arange(records)
    numeric = rng.normal(50, 10, (records, len(NUMERIC))).astype(np.float32)
    numeric[rng.random(numeric.shape) < 0.1] = np.nan
    late = rng.integers(0, 2, records).astype(np.float32)
    return Flights(categorical, numeric, late, rng.integers(101, 101 + days, records, np.int16))


def parts() -> dict[str, Flights]:
    return {
        "train": made_up(5000), "validation": made_up(900), "held_out": made_up(1500)
    }  # fmt: skip


def unexpected() -> dict[str, Flights]:
    raise AssertionError("they were written already")


def together(mine: np.ndarray) -> np.ndarray:
    """Those of all ranks."""
    return np.concatenate(hvd.allgather_object(mine))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on every rank."""
    return hvd.broadcast_object(tmp_path_factory.mktemp("flights"), 0) / "shards"


@pytest.fixture
def found(folder: Path) -> shards.Shards:
    return shards.prepare_on_all(hvd, folder, parts)


def read(found: shards.Shards, part: str) -> Flights:
    """All flights of a part, in the order of the files."""
    batches = list(tf.data.TFRecordDataset(found.files(part)).map(parse).as_numpy_iterator())
    arrays = [
        np.concatenate([features[name] for features, _ in batches])
        for name in ("categorical", "numeric")
    ]
    return Flights(*arrays, np.concatenate([late for _, late in batches]), np.zeros(0, np.int16))


def test_shards_hold_every_flight_once(found: shards.Shards) -> None:
    for part, flights in parts().items():
        assert found.flights[part] == len(flights)
        again = read(found, part)
        order = np.argsort(again.categorical[:, 0])
        np.testing.assert_array_equal(again.categorical[order], flights.categorical)
        np.testing.assert_array_equal(again.numeric[order], flights.numeric)
        np.testing.assert_array_equal(again.late[order], flights.late)
        assert (order != np.arange(len(flights))).mean() > 0.9  # they are shuffled


def test_whole_shards_are_not_written_again(found: shards.Shards, folder: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert shards.prepare_on_all(hvd, folder, unexpected) == found
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def without_stamp(folder: Path) -> None:
    (folder / shards.STAMP).unlink()


def without_a_file(folder: Path) -> None:
    (folder / shards.names("train")[3]).unlink()


def with_half_a_file(folder: Path) -> None:
    path = folder / shards.names("validation")[1]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_half_a_stamp(folder: Path) -> None:
    (folder / shards.STAMP).write_text('{"format": 1, "fli')


def of_another_format(folder: Path) -> None:
    stamp = json.loads((folder / shards.STAMP).read_text())
    (folder / shards.STAMP).write_text(json.dumps({**stamp, "format": shards.FORMAT - 1}))


@pytest.mark.parametrize(
    "harm",
    [without_stamp, without_a_file, with_half_a_file, with_half_a_stamp, of_another_format],
)
def test_harmed_shards_are_written_again(found: shards.Shards, folder: Path, harm: object) -> None:
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    hvd.allgather_object(None)  # all have read
    if hvd.rank() == 0:
        harm(folder)
        assert shards.find(folder) is None
    assert shards.prepare_on_all(hvd, folder, parts) == found
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    hvd.allgather_object(None)


def test_a_failure_ends_every_rank(folder: Path, capsys: pytest.CaptureFixture) -> None:
    def disk_full() -> dict[str, Flights]:
        raise OSError("No space left on device")

    other = folder.with_name("other")
    with pytest.raises(SystemExit) as error:
        shards.prepare_on_all(hvd, other, disk_full)
    told = f"rank 0 cannot prepare {other}: No space left on device"
    assert error.value.code == (told if hvd.rank() == 0 else 1)
    assert not other.exists()


def test_a_write_that_fails_leaves_nothing(folder: Path) -> None:
    if hvd.rank() == 0:
        other = folder.with_name("another")
        with pytest.raises(KeyError, match="test"):
            shards.write(other, {"held_out": made_up(10), "test": made_up(10)})
        assert [path for path in folder.parent.iterdir() if path.name.startswith("another")] == []
    hvd.allgather_object(None)


def test_ranks_share_a_pass_of_training(found: shards.Shards) -> None:
    steps = 5000 // (2 * 100)
    dataset = training(hvd, found, 100, seed=1, first_pass=0)()
    batches = [features["categorical"][:, 0] for features, _ in dataset.take(steps)]
    assert [len(batch) for batch in batches] == [100] * steps
    seen = Counter(together(np.concatenate(batches)).tolist())
    # Ranks have whole files, of which one may be a record longer than another.
    assert sum(seen.values()) == 5000 and len(seen) >= 5000 - 2 * shards.BLOCK


def test_passes_have_orders_of_their_own(found: shards.Shards) -> None:
    def beginning(seed: int, first_pass: int) -> list[int]:
        dataset = training(hvd, found, 100, seed, first_pass)()
        return next(iter(dataset))[0]["categorical"][:, 0].numpy().tolist()

    assert beginning(1, 0) == beginning(1, 0)
    assert len({tuple(beginning(*which)) for which in ((1, 0), (2, 0), (1, 1))}) == 3


def test_evaluation_reads_every_flight_once(found: shards.Shards) -> None:
    for part in ("validation", "held_out"):
        batches = evaluation(found, part)().as_numpy_iterator()
        numbers = np.concatenate([features["categorical"][:, 0] for features, _ in batches])
        np.testing.assert_array_equal(np.sort(numbers), np.arange(len(parts()[part])))


def evaluated(folder: Path, exporters: list[object], step: int, auc: float) -> None:
    """As train_and_evaluate does on rank 0: the model has a checkpoint of this step."""
    checkpoint = folder / f"model.ckpt-{step}"
    for end in ("index", "data-00000-of-00001"):
        checkpoint.with_name(f"{checkpoint.name}.{end}").write_text(f"weights of {step}")
    estimator = SimpleNamespace(model_dir=str(folder))
    results = {"global_step": step, "auc": auc, "log_loss": 0.5, "accuracy": 0.8}
    for exporter in exporters:
        path = str(folder / "export" / exporter.name)
        exporter.export(estimator, path, str(checkpoint), results, False)


def test_the_best_evaluations_checkpoint_is_kept_also_over_a_restart(tmp_path: Path) -> None:
    def kept() -> list[str]:
        files = (tmp_path / "export" / "best").glob("model.ckpt-*.index")
        return [file.read_text() for file in files]

    assert best_checkpoint(str(tmp_path)) is None
    curve = Curve(100)
    for step, auc in ((1, 0.6), (10, 0.8), (100, 0.7)):
        evaluated(tmp_path, [curve, Best(curve)], step, auc)
    assert kept() == ["weights of 10"]
    again = Curve(100)
    again.resume(tmp_path, 100)
    evaluated(tmp_path, [again, Best(again)], 110, 0.75)
    assert kept() == ["weights of 10"]
    assert best_checkpoint(str(tmp_path)) == str(tmp_path / "export" / "best" / "model.ckpt-10")
    evaluated(tmp_path, [again, Best(again)], 120, 0.81)
    assert kept() == ["weights of 120"]


def days_of(flights: Flights) -> list[Flights]:
    return list(stream.days(flights))


def test_days_come_in_time_order_with_every_flight_once() -> None:
    flights = made_up(3000)
    days = days_of(flights)
    assert [day.day[0] for day in days] == sorted(set(flights.day.tolist()))
    numbers = np.concatenate([day.categorical[:, 0] for day in days])
    assert sorted(numbers) == list(range(3000))
    assert all(np.isfinite(day.numeric).all() for day in days)


def test_numbers_are_normalised_with_the_past_alone() -> None:
    flights = made_up(3000)
    border = 120
    days = [day for day in days_of(flights) if day.day[0] <= border]
    cut = days_of(flights.take(flights.day <= border))
    for day, known in zip(days, cut):
        np.testing.assert_array_equal(day.numeric, known.numeric)
    past = flights.numeric[flights.day < border].astype(np.float64)
    raw = flights.numeric[flights.day == border]
    expected = (raw - np.nanmean(past, axis=0)) / np.nanstd(past, axis=0)
    np.testing.assert_allclose(days[-1].numeric, np.nan_to_num(expected, nan=0), atol=1e-4)


def test_a_number_that_never_varied_is_not_blown_up() -> None:
    moments = stream.Moments()
    moments.add(np.full((100, len(NUMERIC)), 1013.1, np.float32))
    raw = np.full((2, len(NUMERIC)), 1015.1, np.float32)
    np.testing.assert_allclose(moments.normalised(raw), 2.0, atol=0.01)


def test_ranks_share_every_batch_of_a_stream() -> None:
    flights = made_up(1007)  # 7 are left for a last batch
    year = stream.Stream(stream.days(flights), 200)
    shares = list(stream.training(hvd, year, 50)().as_numpy_iterator())
    assert len({len(lengths) for lengths in hvd.allgather_object(shares)}) == 1
    ordered = np.concatenate([day.categorical[:, 0] for day in days_of(flights)])
    for number, (features, _) in enumerate(shares):
        mine = features["categorical"][:, 0]
        np.testing.assert_array_equal(together(mine), ordered[number * 100 : (number + 1) * 100])
    assert len(shares) == 11


def test_a_last_flight_for_one_rank_alone_is_left_out() -> None:
    year = stream.Stream(stream.days(made_up(201)), 100)
    shares = list(stream.training(hvd, year, 50)().as_numpy_iterator())
    assert [len(late) for _, late in shares] == [50, 50]


def test_a_stream_is_read_as_far_as_it_is_asked_for() -> None:
    read: list[int] = []

    def endless() -> object:
        while True:
            read.append(len(read))
            yield made_up(50)

    year = stream.Stream(endless(), 100)
    shares = year.shares(25, hvd.rank(), 2)
    for _ in range(5):  # the second block was begun
        next(shares)
    assert len(year.block(2)) == 100 and len(read) == 6
    year.forget_before(2)
    assert year._held.keys() == {2}


def test_blocks_end_with_what_is_left() -> None:
    year = stream.Stream(stream.days(made_up(250)), 100)
    assert [len(year.block(number)) for number in range(3)] == [100, 100, 50]
    assert year.block(3) is None
    assert [len(late) for _, late in stream.evaluation(year.block(2))] == [50]
    assert list(stream.evaluation(None)) == []
