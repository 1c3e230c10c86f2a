# SPDX-License-Identifier: Apache-2.0
"""What a training run reached: report.json, and the report for a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data import write_atomically

Report = dict[str, Any]


def read(model_dir: Path) -> Report:
    """The report of an earlier run."""
    return json.loads((model_dir / "report.json").read_text())


def write(model_dir: Path, report: Report) -> None:
    """Keep the report beside the checkpoints."""
    text = json.dumps(report, indent=2) + "\n"
    write_atomically(model_dir / "report.json", lambda file: file.write(text.encode()))


def text(report: Report) -> str:
    """The report for a reader."""
    lines = [
        f"{report['workers']} worker(s), {report['threads']} thread(s) each, "
        f"{report['batch']} flights per worker and step",
        *curve(report),
        f"{report['steps']} steps ({report['passes']:g} passes) in {report['seconds']:.1f} s: "
        f"{report['steps_per_s']:.0f} steps/s, {report['examples_per_s']:,.0f} examples/s",
    ]
    if "speed_up" in report:
        lines.append(
            f"speed-up over 1 worker without hvd_tf: {report['speed_up']:.2f} "
            f"({report['one_worker_examples_per_s']:,.0f} examples/s, same batch per worker)"
        )
    if report["curve"]:
        last = report["curve"][-1]
        lines.append(
            f"{report['evaluated']}: AUC {last['auc']:.4f}, log loss {last['log_loss']:.4f}, "
            f"accuracy {last['accuracy']:.4f}"
        )
    return "\n".join(lines)


def curve(report: Report) -> list[str]:
    """A heading and a line for every evaluation, none where there were none."""
    rows = report["curve"]
    if not rows:
        return []
    dated = "from" in rows[0]
    lines = [
        f"{'step':>6}{'examples':>12}{'AUC':>9}{'log loss':>10}{'seconds':>9}"
        + ("  flights of" if dated else "")
    ]
    for row in rows:
        line = (
            f"{row['step']:>6}{row['examples']:>12,}{row['auc']:>9.4f}{row['log_loss']:>10.4f}"
            f"{row['seconds']:>9.1f}"
        )
        lines.append(line + (f"  {row['from']} to {row['to']}" if dated else ""))
    return lines
