# SPDX-License-Identifier: Apache-2.0
"""How fast other numbers of workers are: short runs of train.py, for the speed-up."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType

from children import run_together
from report import Report, read

STEPS, FEWEST_STEPS = 400, 200  # of one worker; of many, whose steps take longer


def fewer(workers: int, on_host: int) -> list[int]:
    """The numbers of workers to compare with, which one host runs: 1, 2, 4, ..."""
    powers = [1 << power for power in range(workers.bit_length())]
    return [count for count in powers if count < workers and count <= on_host]


def host_cores() -> set[int]:
    """The processors that all ranks of this host share: those of the process that started them."""
    return os.sched_getaffinity(os.getppid())


def measure(
    script: Path,
    workers: int,
    steps: int,
    arguments: list[str],
    cores: Sequence[Collection[int]],
    options: Sequence[str] = (),
) -> float:
    """Examples per second of a training of so many steps on this many workers of this host.

    One worker is one process without hvd_tf. cores: the processors of each of the trainings that
    run at the same time and know nothing of each other; their speeds are added up. options: of the
    launcher. Meant to be called while the other ranks wait, so that the runs have the machine for
    themselves.
    """
    train = [str(script), "--no-eval", "--no-baseline", f"--steps={steps}", *arguments]
    launch = ["-m", "hvd_tf.launch", "-np", str(workers), *options, sys.executable]
    command = [sys.executable, *(train + ["--plain"] if workers == 1 else launch + train)]
    with tempfile.TemporaryDirectory() as parent:
        folders = [Path(parent, str(number)) for number in range(len(cores))]
        for folder in folders:
            folder.mkdir()
        run_together([[*command, f"--model-dir={folder}"] for folder in folders], cores=cores)
        return sum(read(folder)["examples_per_s"] for folder in folders)


def compare(hvd: ModuleType, report: Report, script: Path, arguments: list[str]) -> None:
    """Add the speeds of fewer workers and the speed-up over one, all with the same batch each.

    Where one host runs all workers, also the speed of so many workers that share nothing but the
    machine: what is missing there is the hardware's part, and not the library's. Each of them has
    the cores of one rank. Every rank calls it; rank 0 measures.
    """
    size, on_host = hvd.size(), hvd.local_size()
    of_ranks, of_host = hvd.allgather_object(os.sched_getaffinity(0)), host_cores()
    options = ["--share-cores"] if of_ranks[0] != of_host else []

    def measured(workers: int, cores: Sequence[Collection[int]]) -> float:
        found = 0.0
        if hvd.rank() == 0:
            together = f"{len(cores)} at once that share nothing"
            words = together if len(cores) > 1 else "for comparison"
            print(f"measuring {workers} worker(s), {words}", file=sys.stderr, flush=True)
            steps = min(max(STEPS // workers, FEWEST_STEPS), report["steps"])
            found = measure(script, workers, steps, arguments, cores, options)
        return hvd.broadcast_object(found, 0)  # hvd: the others wait for each of the runs

    report["speeds"] = [
        {"workers": workers, "examples_per_s": measured(workers, [of_host])}
        for workers in fewer(size, on_host)
    ]
    report["speeds"].append({key: report[key] for key in ("workers", "examples_per_s")})
    one = report["speeds"][0]["examples_per_s"]
    report["one_worker_examples_per_s"] = one
    report["speed_up"] = report["examples_per_s"] / one
    if on_host == size:
        report["independent_examples_per_s"] = measured(1, of_ranks)
        report["independent_speed_up"] = report["independent_examples_per_s"] / one
