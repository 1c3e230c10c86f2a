# SPDX-License-Identifier: Apache-2.0
"""The made-up clicks of the CTR example: their distribution, and that the labels follow the logits.

TensorFlow is not imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "estimator_examples" / "ctr"))

from generator import (
    CARDINALITIES,
    IDS_MISSING,
    INTEGERS_MISSING,
    MISSING,
    RECORDS,
    Generator,
    Records,
)
from zipf import WIDEST, Zipf, expected_distinct, support

CLICKS = 40_000


def probabilities(s: float, n: int) -> np.ndarray:
    weights = np.arange(1, n + 1, dtype=np.float64) ** -s
    return weights / weights.sum()


@pytest.mark.parametrize("s", [0.8, 1.05, 1.2])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_every_value_is_drawn_as_often_as_zipf_says(s: float, n: int) -> None:
    drawn = Zipf(s, n).draw(np.random.default_rng(n), 200_000)
    assert drawn.min() >= 1 and drawn.max() <= n
    expected = probabilities(s, n)
    found = np.bincount(drawn, minlength=n + 1)[1:] / len(drawn)
    # Five standard deviations.
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected / len(drawn)))


def test_the_tail_of_a_wide_distribution() -> None:
    """How many draws are above each power of two, against sums that are computed in full."""
    n, draws = 1 << 20, 200_000
    drawn = Zipf(1.05, n).draw(np.random.default_rng(1), draws)
    beyond = 1 - np.cumsum(probabilities(1.05, n))
    for power in range(20):
        expected = beyond[(1 << power) - 1]
        deviation = np.sqrt(expected * (1 - expected) / draws)
        assert np.mean(drawn > 1 << power) == pytest.approx(expected, abs=5 * deviation), power


@pytest.mark.parametrize("s", [0.8, 1.05, 1.2])
def test_the_expected_number_of_distinct_values(s: float) -> None:
    n, draws = 200_000, 300_000
    exact = np.sum(-np.expm1(draws * np.log1p(-probabilities(s, n))))
    assert expected_distinct(s, n, draws) == pytest.approx(exact, rel=2e-4)
    found = len(np.unique(Zipf(s, n).draw(np.random.default_rng(2), draws)))
    assert found == pytest.approx(exact, rel=0.01)


def test_supports_give_the_published_numbers_of_ids() -> None:
    for cardinality in CARDINALITIES:
        n = support(1.05, cardinality, RECORDS)
        assert n >= cardinality
        found = expected_distinct(1.05, n, RECORDS)
        assert found == pytest.approx(cardinality, rel=2e-3, abs=0.6)
    assert support(1.05, max(CARDINALITIES), RECORDS) > 100 * max(CARDINALITIES)
    # So skewed a distribution never has as many.
    assert support(1.2, max(CARDINALITIES), RECORDS) == WIDEST


@pytest.mark.parametrize(("s", "n"), [(1.0, 5), (0.0, 5), (1.05, 0)])
def test_zipf_says_what_it_cannot_draw(s: float, n: int) -> None:
    with pytest.raises(ValueError, match="must be above 0 and not 1"):
        Zipf(s, n)


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator()


@pytest.fixture(scope="module")
def clicks(generator: Generator) -> Records:
    return generator.records(CLICKS, 0)


def test_the_same_numbers_give_the_same_records(generator: Generator) -> None:
    for numbers, same in (((5, 1), True), ((5, 2), False)):
        one, other = generator.records(64, 5, 1), Generator().records(64, *numbers)
        for name, values in vars(one).items():
            assert np.array_equal(values, getattr(other, name)) == same, name
    assert not np.array_equal(one.categorical, Generator(seed=12).records(64, 5, 1).categorical)


def test_ids_differ_by_feature_and_some_are_missing(clicks: Records) -> None:
    assert clicks.categorical.min() == 0
    ids = [set(column[column > 0].tolist()) for column in clicks.categorical.T]
    assert len(set().union(*ids)) == sum(map(len, ids))
    assert all(len(found) <= most for found, most in zip(ids, CARDINALITIES) if most < 10_000)
    deviations = 5 * np.sqrt(0.25 / CLICKS)
    found = np.mean(clicks.categorical == 0, axis=0)
    np.testing.assert_allclose(found, IDS_MISSING, atol=deviations)
    found = np.mean(clicks.integers == MISSING, axis=0)
    np.testing.assert_allclose(found, INTEGERS_MISSING, atol=deviations)
    assert clicks.integers.min() == MISSING


def test_labels_follow_the_logits(clicks: Records) -> None:
    assert clicks.labels.mean() == pytest.approx(0.25, abs=0.015)
    for some in np.array_split(np.argsort(clicks.logits), 20):
        expected = np.mean(1 / (1 + np.exp(-clicks.logits[some].astype(np.float64))))
        deviation = np.sqrt(expected * (1 - expected) / len(some))
        assert clicks.labels[some].mean() == pytest.approx(expected, abs=5 * deviation)
    assert clicks.logits.std() > 1  # there is something to learn


def test_an_hour_replaces_its_part_of_the_ids() -> None:
    drifting = Generator(drift=0.1)
    hours = [drifting.records(2000, 0, hour=hour).categorical for hour in range(11)]
    assert np.array_equal(hours[0], Generator().records(2000, 0).categorical)
    assert all(np.array_equal(hour > 0, hours[0] > 0) for hour in hours)
    ids = [set(hour[hour > 0].tolist()) for hour in hours]
    for hour in range(11):
        replaced = 1 - len(ids[0] & ids[hour]) / len(ids[0])
        assert replaced == pytest.approx(0.1 * hour, abs=0.02 if hour % 10 else 0)
