# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not end `fit` together are told so at once, with numbers and a remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cases import in_full
from mpi import run_ranks

PROGRAM = str(Path(__file__).with_name("fit_program.py"))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("batches", "it ended epoch 1 after 5 batches, while others go on. Give every rank"),
        pytest.param(
            "stop",
            "it ended fit after 2 epochs, while others go on. Give every rank",
            marks=in_full,
        ),
    ],
)
def test_a_rank_that_has_more_to_do_is_told(how: str, told: str) -> None:
    result = run_ranks([sys.executable, PROGRAM, how], 2)
    assert result.returncode != 0 and not result.timed_out, result.text
    assert result.leftovers == [], result.text
    # The engine names the call and the rank in front of the text.
    assert "UnknownError" in result.outputs[1] and told in result.outputs[1], result.text
    assert "finished" not in result.text
