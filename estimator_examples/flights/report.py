# SPDX-License-Identifier: Apache-2.0
"""What a training run reached: report.json, and the report for a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from files import write_atomically

Report = dict[str, Any]


def read(model_dir: Path) -> Report:
    """The report of an earlier run."""
    return json.loads((model_dir / "report.json").read_text())


def write(model_dir: Path, report: Report) -> None:
    """Keep the report beside the checkpoints."""
    text = json.dumps(report, indent=2) + "\n"
    write_atomically(model_dir / "report.json", lambda file: file.write(text.encode()))


def text(report: Report) -> str:
    """The report for a reader: what was reached, how fast, and what led there."""
    return "\n".join([*quality(report), *speed(report), "", *curve(report), *run(report)])


def quality(report: Report) -> list[str]:
    """AUC and log loss of the flights that were held out, none where nothing was evaluated."""
    if "auc" not in report:
        return []
    name = "AUC" if "test" not in report else "test AUC"
    lines = [
        f"{name:<10}{report['auc']:.4f}, log loss {report['log_loss']:.4f}, "
        f"accuracy {report['accuracy']:.4f}: {report['tested']}"
    ]
    if "test" in report:
        best, end = report["test"]["best"], report["test"]["end"]
        lines.append(
            f"{'':<10}of step {best['step']}, the best of the evaluations; at the end, step "
            f"{end['step']}: AUC {end['auc']:.4f}, log loss {end['log_loss']:.4f}"
        )
    return lines


def speed(report: Report) -> list[str]:
    """Examples per second; beside the speed-up, what this machine has for so many processes."""
    workers = report["workers"]
    if report["steps_per_s"] == 0:
        return [f"{'speed':<10}of too few steps to tell"]
    lines = [
        f"{'speed':<10}{report['examples_per_s']:,.0f} examples/s, "
        f"{report['steps_per_s']:.0f} steps/s"
    ]
    if "speed_up" in report:
        one, of_all = report["one_worker_examples_per_s"], report["speeds"][-1]["examples_per_s"]
        lines.append(
            f"{'speed-up':<10}{report['speed_up']:.2f} over 1 worker without hvd_tf, in turns with "
            f"it: {of_all:,.0f} and {one:,.0f} examples/s"
        )
    if "independent_examples_per_s" in report:
        lines.append(
            f"{'':<10}{report['independent_speed_up']:.2f} is what {workers} such workers reach "
            f"here, each on its own ({report['independent_examples_per_s']:,.0f} examples/s)"
        )
    return lines


def curve(report: Report) -> list[str]:
    """A heading and a line for every evaluation, none where there were none."""
    rows = report["curve"]
    if not rows:
        return []
    dated = "from" in rows[0]
    lines = [
        f"evaluations, {report['evaluated']}:",
        f"{'step':>6}{'examples':>12}{'AUC':>9}{'log loss':>10}{'seconds':>9}"
        + ("  flights of" if dated else ""),
    ]
    best = report["test"]["best"]["step"] if "test" in report else None
    for row in rows:
        line = (
            f"{row['step']:>6}{row['examples']:>12,}{row['auc']:>9.4f}{row['log_loss']:>10.4f}"
            f"{row['seconds']:>9.1f}"
        )
        lines.append(
            line
            + (f"  {row['from']} to {row['to']}" if dated else "")
            + ("  best" if row["step"] == best else "")
        )
    return lines


def run(report: Report) -> list[str]:
    """What was trained."""
    return [
        f"{report['workers']} worker(s), {report['threads']} thread(s) each, "
        f"{report['batch']} flights per worker and step: {report['steps']} steps "
        f"({report['passes']:.2f} passes) in {report['seconds']:.1f} s"
    ]
