# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of shares against NumPy. The module is read from its file, without TensorFlow."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).resolve().parents[2] / "hvd_tf" / "data" / "splitting.py"
_spec = importlib.util.spec_from_file_location("splitting", PATH)
splitting = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(splitting)


# How many of twenty random sets of files can be shared out whole.
SHARED = {1: 20, 2: 18, 3: 16, 4: 15, 7: 18, 16: 17}


@pytest.mark.parametrize("size", SHARED)
def test_whole_files_are_each_given_once_and_evenly(size):
    shared = 0
    for seed in range(20):
        rng = np.random.default_rng([size, seed])
        amounts = rng.integers(0, [50, 1000, 10**9][seed % 3], rng.integers(1, 40 * size))
        shares = splitting.whole_files(amounts.tolist(), size)
        assert shares == splitting.whole_files(amounts.tolist(), size)  # on every rank alike
        if shares is None:
            continue
        shared += 1
        assert len(shares) == size
        assert sorted(sum(shares, [])) == list(range(len(amounts)))
        totals = np.array([amounts[share].sum() for share in shares])
        assert totals.min() > 0
        assert totals.max() - totals.min() < 0.02 * totals.max() or size == 1
    assert shared == SHARED[size]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_equal_files_are_shared_out_whole_where_their_number_fits(size):
    for per_rank in (1, 2, 5):
        shares = splitting.whole_files([1000] * (size * per_rank), size)
        assert [len(share) for share in shares] == [per_rank] * size
    assert splitting.whole_files([1000] * (size + 1), size) is None


def test_the_limit_is_two_percent():
    assert splitting.whole_files([10000, 9801], 2) == [[0], [1]]
    assert splitting.whole_files([10000, 9800], 2) is None


@pytest.mark.parametrize("amounts", [[], [0, 0], [5]])
def test_a_rank_without_data_gets_no_whole_files(amounts):
    assert splitting.whole_files(amounts, 2) is None


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_dealt_records_are_what_numpy_deals_out(size):
    for records in range(40):
        want = [len(np.arange(records)[rank::size]) for rank in range(size)]
        assert splitting.dealt_records(records, size) == want


def test_the_length_of_a_pass_by_policy():
    lengths = [4, 3, 4]
    assert splitting.equal_length(lengths, "drop", "record") == 3
    assert splitting.equal_length(lengths, "repeat", "record") == 4
    assert splitting.equal_length(lengths, "keep", "record") is None
    assert splitting.equal_length([3, 3], "raise", "record") == 3
    with pytest.raises(ValueError, match='uneven="raise".*4 on rank 0, 3 on rank 1'):
        splitting.equal_length(lengths, "raise", "record")


@pytest.mark.parametrize("uneven", ["drop", "repeat", "raise"])
def test_a_rank_without_records_is_named(uneven):
    with pytest.raises(ValueError, match="ranks 1, 2 would have no record: there are 1 for 3"):
        splitting.equal_length([1, 0, 0], uneven, "record")
    assert splitting.equal_length([1, 0, 0], "keep", "record") is None


def test_an_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="uneven='pad': pass one of 'drop', 'repeat'"):
        splitting.check_uneven("pad")
