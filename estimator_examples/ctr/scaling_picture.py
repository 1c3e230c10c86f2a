# SPDX-License-Identifier: Apache-2.0
"""The picture of scaling.py: a step's milliseconds, and the part that is exposed communication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pictures import SIZE_INCHES
from report import Report


def draw(report: Report, labels: dict[str, str], folder: Path) -> str:
    """Draw scaling.png in this folder; its name.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg")  # no display is needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
    paint(report, labels, axes)
    figure.savefig(folder / "scaling.png", dpi=120)
    pyplot.close(figure)
    return "scaling.png"


def paint(report: Report, labels: dict[str, str], axes: Any) -> None:
    """A bar for each way, in two parts; above it the efficiency."""
    ways = report["ways"]
    names = [label.replace(", ", ",\n") for label in labels.values()]
    exposed = [max(0.0, row.get("exposed_ms", 0.0)) for row in ways.values()]
    rest = [row["step_ms"] - part for row, part in zip(ways.values(), exposed)]
    axes.bar(names, rest, color="tab:blue", width=0.6, label="the step itself")
    top = axes.bar(names, exposed, bottom=rest, color="tab:red", width=0.6,
                   label="exposed communication")  # fmt: skip
    words = [
        f"{row['step_ms']:.1f} ms\nefficiency {row['efficiency']:.2f}" for row in ways.values()
    ]
    axes.bar_label(top, words, padding=3)
    axes.set_ylim(0, max(row["step_ms"] for row in ways.values()) * 1.25)
    axes.set_ylabel("milliseconds per step")
    axes.set_title(f"Weak scaling: {report['batch']} clicks per rank, {report['ids']:,} rows")
    axes.legend(loc="upper left", fontsize="small")
