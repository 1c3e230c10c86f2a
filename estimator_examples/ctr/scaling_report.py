# SPDX-License-Identifier: Apache-2.0
"""What the runs of scaling.py come to: efficiency, exposed communication and bytes of a step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from report import Report

PER_STEP = ("payload_bytes", "header_bytes", "control_bytes", "collectives")

Run = dict[str, Any]
"""The means over its processes: "step_ms", "input_ms" and, where the library counts, "sent"."""


def reported(settings: dict[str, Any], runs: dict[str, list[Run]]) -> Report:
    """Medians over the rounds. Ratios and differences are formed within a round.

    settings: "ranks", "model" and what else was asked for. runs: of each way, a run of each round.
    """
    report: Report = {**settings, "rounds": len(runs["alone"])}
    report["input_ms"] = statistics.median(one["input_ms"] for one in runs["alone"])
    step_ms = {way: [one["step_ms"] for one in of_way] for way, of_way in runs.items()}

    def median_of(way: str, other: str, figure: Callable[[float, float], float]) -> float:
        pairs = zip(step_ms[way], step_ms[other])
        return statistics.median(figure(mine, its) for mine, its in pairs)

    report["ways"] = {}
    for way, times in step_ms.items():
        row = {
            "rounds_ms": times,
            "step_ms": statistics.median(times),
            "steps_per_s": 1e3 / statistics.median(times),
            "efficiency": median_of(way, "alone", lambda mine, its: its / mine),
        }
        if way not in ("alone", "independent"):
            row["of_independent"] = median_of(way, "independent", lambda mine, its: its / mine)
            row["exposed_ms"] = median_of(way, "independent", lambda mine, its: mine - its)
        if "sent" in runs[way][0]:
            row["sent"] = {
                key: statistics.median(one["sent"][key] for one in runs[way]) for key in PER_STEP
            }
        report["ways"][way] = row
    return report


def text(report: Report) -> str:
    """The report for a reader."""
    lines = [
        f"{report['model']}, {report['ids']:,} x {report['dimension']}, batch {report['batch']} "
        f"per rank, Zipf {report['zipf']}, 1 thread each: medians of {report['rounds']} rounds of "
        f"{report['steps']} steps",
        f"{'':<36}{'ms/step':>8}{'steps/s':>9}{'efficiency':>12}{'of independent':>16}"
        f"{'exposed ms':>12}",
    ]
    for way, row in report["ways"].items():
        line = f"{label(report, way):<36}{row['step_ms']:>8.1f}{row['steps_per_s']:>9.1f}"
        line += f"{row['efficiency']:>12.2f}"
        if "exposed_ms" in row:
            line += f"{row['of_independent']:>16.2f}{row['exposed_ms']:>12.1f}"
        lines.append(line)
    for way, row in report["ways"].items():
        if "sent" in row:
            sent = row["sent"]
            lines.append(
                f"{way}: each rank sends {sent['payload_bytes']:,.0f} bytes in a step, and "
                f"{sent['header_bytes']:,.0f} in headers of blocks and "
                f"{sent['control_bytes']:,.0f} of the control plane; "
                f"{sent['collectives']:.0f} collectives"
            )
    lines.append(f"the input alone: {report['input_ms']:.2f} ms a batch")
    return "\n".join(lines)


def label(report: Report, way: str) -> str:
    """A way, for a reader."""
    if way == "alone":
        return "1 process"
    if way == "independent":
        return f"{report['ranks']} processes, each on its own"
    return f"{report['ranks']} ranks, {way}"
