# SPDX-License-Identifier: Apache-2.0
"""benchmarks/bench_tables.py: the tables that it makes of a stored file of hvd-bench."""

from __future__ import annotations

import copy
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_tables.py"
# A report as hvd-bench writes it, of two ranks. Its times are made up.
STORED = Path(__file__).with_name("hvd_bench.json")

HEAD = "| | hvd_tf | Horovod | ratio [rounds] | above plain | ratio [rounds] | target |"
ALLREDUCE_4 = (
    "| allreduce 4 B | 200 us | 2.00 ms | 0.10 [0.09-0.11] "
    "| 100 us / 1.90 ms | **0.05** [0.04-0.07] | 0.10 above plain |"
)
ALLREDUCE_16M = (
    "| allreduce 16 MB | 3.50 ms | 8.00 ms | **0.44** [0.38-0.50] "
    "| 1.50 ms / 6.00 ms | 0.25 [0.17-0.33] | 0.50 |"
)
TWO_RANKS = f"""\
{HEAD}
| --- | --- | --- | --- | --- | --- | --- |
{ALLREDUCE_4}
{ALLREDUCE_16M}
| 200 x 256 B | 1.25 ms | 2.50 ms | 0.50 [0.40-0.60] | 750 us / 2.00 ms | 0.38 [0.25-0.50] | 0.40 |
| the same, one `grouped_allreduce` | 875 us | 1.75 ms | 0.50 [0.43-0.57] | 375 us / 1.25 ms \
| 0.30 [0.20-0.40] | |
| sparse allreduce, 1024 rows of 64 | 250 us | 100 us | 2.50 [2.50-2.50] | 150 us / 0.00 us | | |
"""


def stored() -> dict[str, Any]:
    return json.loads(STORED.read_text())


def table(*files: dict[str, Any]) -> str:
    return runpy.run_path(str(SCRIPT))["table"](files)


def test_a_table_is_made_of_a_file() -> None:
    command = [sys.executable, str(SCRIPT), str(STORED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"2 ranks, 1 run(s):\n\n{TWO_RANKS}\n"


def test_a_figure_of_several_files_is_their_median() -> None:
    slow, slower = stored(), stored()
    for factor, numbers in ((2, slow), (4, slower)):
        case = numbers["cases"][0]
        case["ours"]["median_s"] *= factor
        case["ratio"] = {key: value * factor for key, value in case["ratio"].items()}
    first = table(slower, stored(), slow).splitlines()[2]
    assert first.startswith("| allreduce 4 B | 400 us | 2.00 ms | 0.20 [0.09-0.45] | 100 us / 1.90")


def test_with_four_ranks_the_target_is_one() -> None:
    numbers = stored()
    numbers["ranks"] = 4
    lines = table(numbers).splitlines()
    assert lines[2].endswith("**0.10** [0.09-0.11] | 100 us / 1.90 ms | 0.05 [0.04-0.07] | 1.00 |")
    # It takes 2.5 times as long.
    assert "| 2.50 [2.50-2.50] |" in lines[6]


def test_a_case_that_was_not_timed_is_left_out() -> None:
    numbers = stored()
    numbers["cases"][1].update(ratio=None, theirs={"skipped": "m has no allreduce"})
    assert "16 MB" not in table(numbers) and "16 MB" in table(numbers, stored())


def test_other_files_are_refused() -> None:
    other, alone = copy.deepcopy(stored()), stored()
    other["format"] = 0
    del alone["libraries"]["theirs"]
    for numbers in (other, alone):
        with pytest.raises(ValueError, match="not written by hvd-bench --against"):
            table(numbers)
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
