# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report: the learning curve, and the speed-up over fewer workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import Report

SIZE_INCHES = (7.0, 4.0)


def draw(report: Report, folder: Path) -> list[str]:
    """Draw what the report has, as PNG files in this folder; their names.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg")  # no display is needed
    from matplotlib import pyplot

    names = []
    for name, has_it, paint in (
        ("learning_curve.png", report["curve"], learning_curve),
        ("speed_up.png", "speeds" in report, speed_up),
    ):
        if has_it:
            figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
            paint(report, axes)
            figure.savefig(folder / name, dpi=120)
            pyplot.close(figure)
            names.append(name)
    return names


def learning_curve(report: Report, axes: Any) -> None:
    """AUC and log loss over the flights that were trained on."""
    thousands = [row["examples"] / 1000 for row in report["curve"]]
    for side, key, label, color in (
        (axes, "auc", "AUC", "tab:blue"),
        (axes.twinx(), "log_loss", "log loss", "tab:orange"),
    ):
        side.plot(thousands, [row[key] for row in report["curve"]], "o-", color=color)
        side.set_ylabel(label, color=color)
    axes.set_xlabel("flights trained on, thousands")
    axes.set_title(f"{report['evaluated']}, {report['workers']} worker(s)")


def speed_up(report: Report, axes: Any) -> None:
    """Examples per second by the number of workers, beside a multiple of one worker's."""
    workers = [point["workers"] for point in report["speeds"]]
    speeds = [point["examples_per_s"] for point in report["speeds"]]
    linear = [speeds[0] * count for count in workers]
    axes.plot(workers, linear, "--", color="grey", label="as many times the first")
    axes.plot(workers, speeds, "o-", color="tab:blue", label="measured")
    axes.set_xticks(workers)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"workers, {report['threads']} thread(s) each; 1 is without hvd_tf")
    axes.set_ylabel("examples per second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend()
