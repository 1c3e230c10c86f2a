# SPDX-License-Identifier: Apache-2.0
"""Makes numbers of the times of jobs, as one dictionary. The JSON file has the same.

Times are in seconds, sizes in bytes, bandwidths in 10^9 bytes a second. Names end in their unit.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from hvd_tf.bench.bandwidth import algbw_gb_s, busbw_gb_s
from hvd_tf.bench.cases import Case

# The format of the JSON file. A reader of another format cannot read it.
FORMAT = 1
YARDSTICKS = ("memcpy", "mpi_allreduce")

# What a job returned: "facts", and for each name of a case the results of its rounds.
Found = Mapping[str, Any]


def collect(
    setting: Mapping[str, Any],
    cases: Sequence[Case],
    sizes_bytes: Sequence[int],
    libraries: Mapping[str, Found],
    yardsticks: Found,
) -> dict[str, Any]:
    """All numbers.

    Args:
      setting: "ranks", and what else belongs at the top of the report.
      cases: what was measured.
      sizes_bytes: the sizes of the yardsticks.
      libraries: what Job.finish returned, as "ours" and maybe "theirs".
      yardsticks: what Job.finish returned for the yardsticks.
    """
    ranks = int(setting["ranks"])
    measured = {name: _yardstick(name, sizes_bytes, ranks, yardsticks) for name in YARDSTICKS}
    return {
        "format": FORMAT,
        **setting,
        "libraries": {key: dict(found["facts"]) for key, found in libraries.items()},
        "yardstick_facts": dict(yardsticks["facts"]),
        "yardsticks": measured,
        "cases": [_case(case, ranks, libraries, measured["mpi_allreduce"]) for case in cases],
    }


def _yardstick(
    name: str, sizes_bytes: Sequence[int], ranks: int, yardsticks: Found
) -> list[dict[str, Any]]:
    entries = []
    for size_bytes in sizes_bytes:
        found = yardsticks["cases"].get(f"{name} {size_bytes}")
        if found:
            # A copy crosses no bus, so it moves its size.
            verb = "broadcast" if name == "memcpy" else "allreduce"
            summary = _summary([entry["times_s"] for entry in found], verb, ranks, size_bytes)
            entries.append({"size_bytes": size_bytes, **summary})
    return entries


def _case(
    case: Case, ranks: int, libraries: Mapping[str, Found], mpi: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        name: getattr(case, name)
        for name in ("name", "kind", "verb", "call", "place", "heading", "label", "size_bytes")
    }
    entry["tensors"] = len(case.shapes)
    for key, job in libraries.items():
        found = job["cases"][case.name]
        skipped = next((part["skipped"] for part in found if "skipped" in part), None)
        entry[key] = {"skipped": skipped} if skipped else _library(found, case, ranks)
    entry["ratio"] = _ratio(entry["ours"], entry.get("theirs"), "rounds_s")
    entry["above_plain_ratio"] = _ratio(entry["ours"], entry.get("theirs"), "above_plain_rounds_s")
    # The same bytes in one buffer. For many tensors, fusion can only be faster by more overlap.
    yardstick = next((one for one in mpi if one["size_bytes"] == case.size_bytes), None)
    entry["over_mpi"] = None
    if case.verb == "allreduce" and yardstick and "median_s" in entry["ours"]:
        entry["over_mpi"] = entry["ours"]["median_s"] / yardstick["median_s"]
    return entry


def _library(found: Sequence[Mapping[str, Any]], case: Case, ranks: int) -> dict[str, Any]:
    summary = _summary([part["times_s"] for part in found], case.verb, ranks, case.size_bytes)
    plain_s = statistics.median(value for part in found for value in part["plain_s"])
    above_s = [
        round_s - statistics.median(part["plain_s"])
        for round_s, part in zip(summary["rounds_s"], found)
    ]
    return {
        **summary,
        "plain_s": plain_s,
        "above_plain_s": summary["median_s"] - plain_s,
        "above_plain_rounds_s": above_s,
    }


def _summary(
    rounds_s: Sequence[Sequence[float]], verb: str, ranks: int, size_bytes: int
) -> dict[str, Any]:
    """The summary of the times of all rounds. "rounds_s" has each round's median."""
    times_s = [time_s for round_s in rounds_s for time_s in round_s]
    q1_s, median_s, q3_s = statistics.quantiles(times_s, n=4, method="inclusive")
    return {
        "median_s": median_s,
        "q1_s": q1_s,
        "q3_s": q3_s,
        "calls": len(times_s),
        "rounds_s": [statistics.median(round_s) for round_s in rounds_s],
        "algbw_gb_s": algbw_gb_s(size_bytes, median_s),
        "busbw_gb_s": busbw_gb_s(verb, ranks, size_bytes, median_s),
    }


def _ratio(
    ours: Mapping[str, Any], theirs: Optional[Mapping[str, Any]], rounds: str
) -> Optional[dict[str, float]]:
    """The ratios of our time to theirs in the same round. Below 1 ours is faster."""
    if not theirs or "skipped" in ours or "skipped" in theirs:
        return None
    if any(other <= 0 for other in theirs[rounds]):
        # The verb was faster than tf.negative, so there is no ratio.
        return None
    ratios = [mine / other for mine, other in zip(ours[rounds], theirs[rounds])]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
