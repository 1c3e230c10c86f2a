# SPDX-License-Identifier: Apache-2.0
"""How fast fewer workers are: short runs of train.py, for the speed-up."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from report import Report, read

STEPS, FEWEST_STEPS = 600, 200  # of one worker; of many, whose steps take longer
LAUNCHER = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "MPI_")  # what mpirun puts into it


def alone_environment() -> dict[str, str]:
    """The environment without what mpirun added, so that a child process is on its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER)}


def fewer(workers: int, on_host: int) -> list[int]:
    """The numbers of workers to compare with, which one host runs: 1, 2, 4, ..."""
    powers = [1 << power for power in range(workers.bit_length())]
    return [count for count in powers if count < workers and count <= on_host]


def measure(script: Path, workers: int, arguments: list[str]) -> Report:
    """Train for a moment on this many workers of this host; the report of that run.

    One worker is one process without hvd_tf. Meant to be called while the other ranks wait, so
    that the run has the machine for itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        train = [sys.executable, str(script), "--no-eval", "--no-baseline", *arguments]
        launch = [sys.executable, "-m", "hvd_tf.launch", "-np", str(workers)]
        command = [*train, "--plain"] if workers == 1 else [*launch, *train]
        done = subprocess.run(
            [*command, f"--model-dir={folder}"],
            env=alone_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"the run of {workers} worker(s) failed:\n{done.stderr}")
        return read(Path(folder))


def compare(hvd: ModuleType, report: Report, script: Path, arguments: list[str]) -> None:
    """Add the speeds of fewer workers, and the speed-up over one, all with the same batch each.

    Every rank calls it; rank 0 measures.
    """
    report["speeds"] = []
    for workers in fewer(hvd.size(), hvd.local_size()):
        speed = 0.0
        if hvd.rank() == 0:
            steps = f"--steps={max(STEPS // workers, FEWEST_STEPS)}"
            speed = measure(script, workers, [*arguments, steps])["examples_per_s"]
        speed = hvd.broadcast_object(speed, 0)  # hvd: the others wait for each of the runs
        report["speeds"].append({"workers": workers, "examples_per_s": speed})
    report["speeds"].append({key: report[key] for key in ("workers", "examples_per_s")})
    report["one_worker_examples_per_s"] = report["speeds"][0]["examples_per_s"]
    report["speed_up"] = report["examples_per_s"] / report["one_worker_examples_per_s"]
