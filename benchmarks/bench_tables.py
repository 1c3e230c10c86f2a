# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/performance.md, in Markdown, of what `hvd-bench --json` wrote.

    hvd-bench --against horovod.tensorflow --python PYTHON --json one.json
    python benchmarks/bench_tables.py one.json two.json

Files with the same number of ranks make one table. Each figure is the median over the files. Beside
a ratio stand the least and the most of all rounds of all files. A ratio that meets its target is
bold.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from hvd_tf.bench.results import FORMAT
from hvd_tf.bench.units import time_text

Numbers = dict[str, Any]


class Row(NamedTuple):
    """A line of the tables."""

    case: str
    """The case's name in the JSON file."""
    words: str
    """Its words in the table."""
    target: Optional[float] = None
    """For the ratio to the other library, with 2 ranks."""
    above: bool = False
    """The target is for the ratio of what is above the plain call."""


ROWS = (
    Row("allreduce 4 B", "allreduce 4 B", 0.10, above=True),
    Row("allreduce 4 KiB", "allreduce 4 KB", 0.10, above=True),
    Row("allreduce 256 KiB", "allreduce 256 KB"),
    Row("allreduce 1 MiB", "allreduce 1 MB", 0.25, above=True),
    Row("allreduce 16 MiB", "allreduce 16 MB", 0.50),
    Row("allreduce 64 MiB", "allreduce 64 MB", 0.30),
    Row("allreduce ResNet-50, 161", "ResNet-50's 161 gradients", 0.22),
    Row("grouped_allreduce ResNet-50, 161", "the same, one `grouped_allreduce`"),
    Row("allreduce 100 x 256 KiB", "100 x 256 KB", 0.40),
    Row("allreduce 200 x 256 B", "200 x 256 B", 0.40),
    Row("grouped_allreduce 200 x 256 B", "the same, one `grouped_allreduce`"),
    Row("broadcast_variables 200 x 64 KiB", "eager `broadcast_variables`, 200 x 64 KB", 0.25),
    Row("broadcast_in_place 200 x 64 KiB", "the same in a `tf.function`, in place"),
    Row("allgather 256 KiB", "allgather 256 KB"),
    Row("allgather 4 MiB", "allgather 4 MB", 0.50),
    Row("broadcast 256 KiB", "broadcast 256 KB"),
    Row("sparse_allreduce 1024 rows of 64", "sparse allreduce, 1024 rows of 64"),
    Row("sparse_allreduce 16384 rows of 64", "sparse allreduce, 16384 rows of 64"),
)
HEAD = ("", "hvd_tf", "{theirs}", "ratio [rounds]", "above plain", "ratio [rounds]", "target")
# The target of every ratio, with more ranks than 2.
TARGET_OF_MORE = 1.0


def table(files: Sequence[Numbers]) -> str:
    """One table of files with equally many ranks, in which two libraries were timed.

    Raises:
      ValueError: a file is of another format, or has one library only.
    """
    for numbers in files:
        if numbers.get("format") != FORMAT or "theirs" not in numbers["libraries"]:
            raise ValueError(f"not written by hvd-bench --against ... --json (format {FORMAT})")
    ranks, name = files[0]["ranks"], files[0]["libraries"]["theirs"]["module"]
    theirs = "Horovod" if name == "horovod.tensorflow" else name
    rows = [[cell.format(theirs=theirs) for cell in HEAD], ["---"] * len(HEAD)]
    for row in ROWS:
        cases = [case for one in files for case in one["cases"] if case["name"] == row.case]
        timed = [case for case in cases if case["ratio"]]
        if timed:
            rows.append(_cells(row if ranks == 2 else Row(*row[:2], TARGET_OF_MORE), timed))
    lines = ("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in rows)
    return "\n".join(lines) + "\n"


def _cells(row: Row, cases: Sequence[Numbers]) -> list[str]:
    ours, theirs = (_median(case[key]["median_s"] for case in cases) for key in ("ours", "theirs"))
    above = [
        time_text(_median(case[key]["above_plain_s"] for case in cases))
        for key in ("ours", "theirs")
    ]
    with_above = [case["above_plain_ratio"] for case in cases if case["above_plain_ratio"]]
    return [
        row.words,
        time_text(ours),
        time_text(theirs),
        _ratio([case["ratio"] for case in cases], None if row.above else row.target),
        " / ".join(above),
        _ratio(with_above, row.target if row.above else None),
        "" if row.target is None else f"{row.target:.2f}{' above plain' if row.above else ''}",
    ]


def _ratio(ratios: Sequence[dict[str, float]], target: Optional[float]) -> str:
    if not ratios:
        return ""
    median = _median(ratio["median"] for ratio in ratios)
    text = f"**{median:.2f}**" if target is not None and median <= target else f"{median:.2f}"
    least, most = min(one["least"] for one in ratios), max(one["most"] for one in ratios)
    return f"{text} [{least:.2f}-{most:.2f}]"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def main(paths: Sequence[str]) -> None:
    """Prints a table for each number of ranks."""
    if not paths:
        sys.exit("bench_tables.py: name the files that hvd-bench --json wrote")
    files = [json.loads(Path(path).read_text()) for path in paths]
    for ranks in sorted({numbers.get("ranks", 0) for numbers in files}):
        same = [numbers for numbers in files if numbers.get("ranks", 0) == ranks]
        try:
            made = table(same)
        except ValueError as error:
            sys.exit(f"bench_tables.py: {error}")
        print(f"{ranks} ranks, {len(same)} run(s):\n\n{made}")


if __name__ == "__main__":
    main(sys.argv[1:])
