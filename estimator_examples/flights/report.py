# SPDX-License-Identifier: Apache-2.0
"""What a training run reached: the report, and the run of one worker it is compared with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LAUNCHER = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "MPI_")  # what mpirun puts into it

Report = dict[str, Any]


def alone_environment() -> dict[str, str]:
    """The environment without what mpirun added, so that a child process is on its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER)}


def one_worker(script: Path, arguments: list[str]) -> Report:
    """Train for a moment in one process without hvd_tf and return that run's report.

    Meant to be measured while the other ranks wait, so it has the machine for itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(script), "--plain", "--no-eval", "--model-dir", folder]
        subprocess.run(
            [*command, *arguments],
            env=alone_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=True,
        )
        return read(Path(folder))


def read(model_dir: Path) -> Report:
    """The report of an earlier run."""
    return json.loads((model_dir / "report.json").read_text())


def write(model_dir: Path, report: Report) -> None:
    """Keep the report beside the checkpoints."""
    (model_dir / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def compare(report: Report, single: Report) -> None:
    """Add the speed-up over one worker with the same batch per worker and the same threads."""
    report["one_worker_examples_per_s"] = single["examples_per_s"]
    report["speed_up"] = report["examples_per_s"] / single["examples_per_s"]


def text(report: Report) -> str:
    """The report for a reader."""
    lines = [
        f"{report['workers']} worker(s), {report['threads']} thread(s) each, "
        f"{report['batch']} flights per worker and step",
        f"{report['steps']} steps ({report['passes']:g} passes) in {report['seconds']:.1f} s: "
        f"{report['steps_per_s']:.0f} steps/s, {report['examples_per_s']:,.0f} examples/s",
    ]
    if "speed_up" in report:
        lines.append(
            f"speed-up over 1 worker without hvd_tf: {report['speed_up']:.2f} "
            f"({report['one_worker_examples_per_s']:,.0f} examples/s, same batch per worker)"
        )
    if "auc" in report:
        which = "flights after 15 November" if report["held_out"] == "test" else report["held_out"]
        lines.append(
            f"{which}: AUC {report['auc']:.4f}, log loss {report['log_loss']:.4f}, "
            f"accuracy {report['accuracy']:.4f}"
        )
    return "\n".join(lines)
