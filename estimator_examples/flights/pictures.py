# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report: the learning curve, and the speed beside that of other set-ups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import Report

SIZE_INCHES = (7.0, 4.5)
# Marker, colour, size and words for the weights that were tested.
TESTED = {
    "best": ("*", "tab:red", 13, "best on validation"),
    "end": ("s", "tab:gray", 5, "last step"),
}
AUC_SPAN, LOG_LOSS_SPAN = 0.02, 0.02  # an axis shows this much at least: less is noise


def draw(report: Report, folder: Path) -> list[str]:
    """Draw what the report has, as PNG files in this folder; their names.

    Raises:
      ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("agg")  # no display is needed
    from matplotlib import pyplot

    names = []
    for name, has_it, rows, paint in (
        ("learning_curve.png", report["curve"], 2, learning_curve),
        ("speed_up.png", "speeds" in report, 1, speed_up),
    ):
        if has_it:
            figure, axes = pyplot.subplots(
                rows, sharex=True, figsize=SIZE_INCHES, layout="constrained"
            )
            paint(report, axes)
            figure.savefig(folder / name, dpi=120)
            pyplot.close(figure)
            names.append(name)
    return names


def learning_curve(report: Report, axes: Any) -> None:
    """AUC above and log loss below, over the flights that were trained on."""
    per_step = report["batch"] * report["workers"]
    thousands = [row["examples"] / 1000 for row in report["curve"]]
    tested = report.get("test", {})
    for side, key, label, span in (
        (axes[0], "auc", "AUC (1 is best)", AUC_SPAN),
        (axes[1], "log_loss", "log loss (nats)", LOG_LOSS_SPAN),
    ):
        values = [row[key] for row in report["curve"]]
        side.plot(thousands, values, "o-", label="validation" if tested else "next block")
        for which, row in tested.items():
            marker, color, size, of = TESTED[which]
            at = row["step"] * per_step / 1000
            side.plot(at, row[key], marker, color=color, markersize=size, label=f"test, {of}")
        low, high = side.get_ylim()
        missing = max(0.0, span - (high - low)) / 2
        side.set_ylim(low - missing, high + missing)
        side.set_ylabel(label)
        side.yaxis.set_major_formatter("{x:.3f}")
        side.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    axes[0].set_title(f"Learning curve, {report['workers']} worker(s)")
    axes[1].set_xlim(left=0)
    axes[1].set_xlabel("flights trained on (thousands)")
    axes[1].xaxis.set_major_formatter("{x:,.0f}")


def speed_up(report: Report, axes: Any) -> None:
    """A bar for each set-up: examples per second, and how many times those of one worker."""
    one = report["one_worker_examples_per_s"]
    bars = [("1 worker\nwithout hvd_tf", one, "tab:gray")]
    bars += [
        (f"{point['workers']} workers\nwith hvd_tf", point["examples_per_s"], "tab:blue")
        for point in report["speeds"][1:]
    ]
    if "independent_examples_per_s" in report:
        label = f"{report['workers']} workers,\neach on its own"
        bars.append((label, report["independent_examples_per_s"], "lightgray"))
    labels, speeds, colors = zip(*bars)
    drawn = axes.bar(labels, [speed / 1000 for speed in speeds], color=colors, width=0.6)
    axes.bar_label(drawn, [f"{speed:,.0f}\n{speed / one:.2f} x" for speed in speeds], padding=3)
    axes.set_ylim(0, max(speeds) / 1000 * 1.2)
    axes.set_ylabel("examples per second (thousands)")
    axes.set_title(f"Speed, {report['batch']} flights per step, {report['threads']} thread(s) each")
