# SPDX-License-Identifier: Apache-2.0
"""How fast other numbers of workers are: short runs of train.py, for the speed-up."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import ModuleType

from children import run_together
from report import Report, read

STEPS, FEWEST_STEPS = 400, 200  # of one worker; of many, whose steps take longer


def fewer(workers: int, on_host: int) -> list[int]:
    """The numbers of workers to compare with, which one host runs: 1, 2, 4, ..."""
    powers = [1 << power for power in range(workers.bit_length())]
    return [count for count in powers if count < workers and count <= on_host]


def measure(script: Path, workers: int, steps: int, arguments: list[str], runs: int = 1) -> float:
    """Examples per second of a training of so many steps on this many workers of this host.

    One worker is one process without hvd_tf. runs: so many trainings at the same time, which know
    nothing of each other; the sum of their speeds. Meant to be called while the other ranks wait,
    so that the runs have the machine for themselves.
    """
    train = [str(script), "--no-eval", "--no-baseline", f"--steps={steps}", *arguments]
    launch = ["-m", "hvd_tf.launch", "-np", str(workers), sys.executable]
    command = [sys.executable, *(train + ["--plain"] if workers == 1 else launch + train)]
    with tempfile.TemporaryDirectory() as parent:
        folders = [Path(parent, str(number)) for number in range(runs)]
        for folder in folders:
            folder.mkdir()
        run_together([[*command, f"--model-dir={folder}"] for folder in folders])
        return sum(read(folder)["examples_per_s"] for folder in folders)


def compare(hvd: ModuleType, report: Report, script: Path, arguments: list[str]) -> None:
    """Add the speeds of fewer workers and the speed-up over one, all with the same batch each.

    Where one host runs all workers, also the speed of so many workers that share nothing but the
    machine: what is missing there is the hardware's part, and not the library's. Every rank calls
    it; rank 0 measures.
    """
    size, on_host = hvd.size(), hvd.local_size()

    def measured(workers: int, runs: int = 1) -> float:
        found = 0.0
        if hvd.rank() == 0:
            together = f"{runs} at once that share nothing" if runs > 1 else "for comparison"
            print(f"measuring {workers} worker(s), {together}", file=sys.stderr, flush=True)
            steps = min(max(STEPS // workers, FEWEST_STEPS), report["steps"])
            found = measure(script, workers, steps, arguments, runs)
        return hvd.broadcast_object(found, 0)  # hvd: the others wait for each of the runs

    report["speeds"] = [
        {"workers": workers, "examples_per_s": measured(workers)}
        for workers in fewer(size, on_host)
    ]
    report["speeds"].append({key: report[key] for key in ("workers", "examples_per_s")})
    one = report["speeds"][0]["examples_per_s"]
    report["one_worker_examples_per_s"] = one
    report["speed_up"] = report["examples_per_s"] / one
    if on_host == size:
        report["independent_examples_per_s"] = measured(1, runs=size)
        report["independent_speed_up"] = report["independent_examples_per_s"] / one
