# SPDX-License-Identifier: Apache-2.0
"""The report for people. It is made only of the numbers that --json writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from hvd_tf.bench.units import bytes_text, time_text

_COLUMNS = ("", "calls", "median", "quartiles", "above plain", "algbw", "busbw")
_LEGEND = """\
Each time is the mean over the ranks of one call after a barrier; medians and quartiles of all \
calls.
above plain: the median less that of the same call with tf.negative in place of the verb.
algbw, busbw: GB/s (10^9 bytes a second) as NCCL's tests define them (doc/PERFORMANCE.md there)."""
_MPI_LEGEND = "/MPI: the median over that of one MPI_Allreduce of as many bytes."
_RATIO_LEGEND = """\
ours/theirs: the medians' ratio in each round; its median [least - most]. Below 1 hvd_tf is \
faster.
above/above: the same of what each adds to a call with tf.negative in its own process."""


def report(numbers: Mapping[str, Any]) -> str:
    """The report of what results.collect returned."""
    parts = ["\n".join(_head(numbers))]
    for heading, cases in groupby(numbers["cases"], key=lambda case: str(case["heading"])):
        parts.append("\n".join([heading, *_case_table(numbers, list(cases))]))
    parts.append("\n".join(_yardsticks(numbers)))
    return "\n\n".join(parts) + "\n"


def _head(numbers: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"hvd-bench: {numbers['ranks']} rank(s) of {numbers['threads']} thread(s), "
        f"{numbers['cores']} core(s), {numbers['seconds']:g} s a case, "
        f"{numbers['rounds']} round(s), float32"
    )
    for key, facts in numbers["libraries"].items():
        yield (
            f"{key}: {facts['module']} {facts['version']}, TensorFlow {facts['tensorflow']}, "
            f"Python {facts['python']}"
        )
    if numbers["ranks"] > numbers["cores"]:
        yield "More ranks than cores: they take turns, and times say little about the library."
    yield _LEGEND
    if numbers["yardsticks"]["mpi_allreduce"]:
        yield _MPI_LEGEND
    if "theirs" in numbers["libraries"]:
        yield _RATIO_LEGEND


def _case_table(numbers: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    against = "theirs" in numbers["libraries"]
    with_mpi = any(case["over_mpi"] for case in cases)
    head = [*_COLUMNS, *(["/MPI"] if with_mpi else [])]
    head += ["theirs", "quartiles", "ours/theirs", "above/above"] if against else []
    rows = []
    for case in cases:
        row = [case["label"], *_measured(case["ours"])]
        if with_mpi:
            row.append(f"{case['over_mpi']:.2f}" if case["over_mpi"] else "")
        if against:
            theirs = case["theirs"]
            row += ["", theirs["skipped"]] if "skipped" in theirs else _time(theirs)
            row += [_ratio(case["ratio"]), _ratio(case["above_plain_ratio"])]
        rows.append(row)
    return _table([head, *rows])


def _measured(entry: Mapping[str, Any]) -> list[str]:
    if "skipped" in entry:
        return ["", "", entry["skipped"], "", "", ""]
    return [
        str(entry["calls"]),
        *_time(entry),
        time_text(entry["above_plain_s"]),
        f"{entry['algbw_gb_s']:.3g}",
        f"{entry['busbw_gb_s']:.3g}",
    ]


def _time(entry: Mapping[str, Any]) -> list[str]:
    quartiles = f"[{time_text(entry['q1_s'])} - {time_text(entry['q3_s'])}]"
    return [time_text(entry["median_s"]), quartiles]


def _ratio(ratio: Mapping[str, float] | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio['median']:.2f} [{ratio['least']:.2f} - {ratio['most']:.2f}]"


def _yardsticks(numbers: Mapping[str, Any]) -> Iterator[str]:
    facts = numbers["yardstick_facts"]
    yield f"yardsticks: memcpy by NumPy on all ranks at once; {facts.get('mpi') or facts['mpi4py']}"
    by_size: dict[int, list[str]] = {}
    for name, entries in numbers["yardsticks"].items():
        for entry in entries:
            row = by_size.setdefault(entry["size_bytes"], [bytes_text(entry["size_bytes"])])
            key = "algbw_gb_s" if name == "memcpy" else "busbw_gb_s"
            row += [*_time(entry), f"{entry[key]:.3g}"]
    head = ["", "memcpy", "quartiles", "GB/s"]
    if numbers["yardsticks"]["mpi_allreduce"]:
        head += ["MPI_Allreduce in place", "quartiles", "busbw"]
    yield from _table([head, *by_size.values()])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths)).rstrip()
