# SPDX-License-Identifier: Apache-2.0
"""How fast other numbers of workers are: trainings that take turns, for the speed-up."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType

import turns
from children import together
from report import Report

STEPS = 100  # of a turn


@dataclass(frozen=True)
class Setup:
    """Trainings that run at the same time and know nothing of each other, on this host."""

    workers: int
    """Of each training. One worker is one process without hvd_tf."""
    cores: Sequence[Collection[int]]
    """The processors of each training."""

    def __str__(self) -> str:
        if self.workers > 1:
            return f"{self.workers} workers with it"
        count = len(self.cores)
        return "1 worker without hvd_tf" if count == 1 else f"{count} without it at once"


def counts(workers: int, on_host: int) -> list[int]:
    """The numbers of workers to compare, those that one host can run: 1, 2, 4, ... and all."""
    powers = [1 << power for power in range(workers.bit_length())]
    return [count for count in sorted({*powers, workers}) if count <= min(workers, on_host)]


def host_cores() -> set[int]:
    """The processors that all ranks of this host share: those of the process that started them."""
    return os.sched_getaffinity(os.getppid())


def command(script: Path, setup: Setup, arguments: list[str], options: Sequence[str]) -> list[str]:
    """What starts one training of a set-up. options: of the launcher."""
    words = [str(script), "--no-eval", "--no-baseline", *arguments]
    if setup.workers == 1:
        return [sys.executable, *words, "--plain"]
    launcher = ["-m", "hvd_tf.launch", "-np", str(setup.workers), *options]
    return [sys.executable, *launcher, sys.executable, *words]


def take_turns(
    setups: Sequence[Setup],
    script: Path,
    steps: int,
    arguments: list[str],
    options: Sequence[str] = (),
) -> Iterator[list[float]]:
    """Yields global steps per second of each set-up, turn by turn. Those of its trainings add up.

    All are started once, and one set-up trains at a time. So a machine that is slower for a while
    is so for all of them. The first turn warms up. The other ranks must wait meanwhile.

    Args:
      setups: what is compared.
      script: train.py.
      steps: of a turn, 2 or more. The first of them is not timed.
      arguments: of train.py.
      options: of the launcher, where a training has several workers.

    Raises:
      RuntimeError: a training failed; says what it printed.
    """
    # One more step, for which all wait: who ends would disturb those whose turn it is.
    common = [f"--steps={steps * turns.COUNT + 1}", *arguments]
    callers: list[list[turns.Caller]] = []
    commands, cores = [], []
    with ExitStack() as stack:
        for setup in setups:
            callers.append([])
            for processors in setup.cores:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                callers[-1].append(stack.enter_context(closing(turns.Caller(folder))))
                own = [f"--model-dir={folder}", f"--turns={folder}"]
                commands.append(command(script, setup, common + own, options))
                cores.append(processors)
        running = stack.enter_context(together(commands, cores))
        for number in range(turns.COUNT):
            found = [0.0] * len(setups)
            for which in range(len(setups))[:: 1 if number % 2 == 0 else -1]:
                for caller in callers[which]:
                    caller.go()
                took_s = [caller.took_s(running) for caller in callers[which]]
                found[which] = sum((steps - 1) / seconds for seconds in took_s)
            yield found
        for caller in chain(*callers):
            caller.go()
        while running():
            time.sleep(0.02)


def compare(hvd: ModuleType, report: Report, script: Path, arguments: list[str]) -> None:
    """Add the speeds of fewer workers and the speed-up over one, all with the same batch each.

    Where one host runs all workers, also the speed of so many workers that share nothing but the
    machine: what is missing there is the hardware's part, and not the library's. Each of them has
    the cores of one rank. Every rank calls it; rank 0 measures.
    """
    size, on_host = hvd.size(), hvd.local_size()
    of_ranks, of_host = hvd.allgather_object(os.sched_getaffinity(0)), host_cores()
    options = ["--share-cores"] if of_ranks[0] != of_host else []
    setups = [Setup(count, [of_host]) for count in counts(size, on_host)]
    setups += [Setup(1, of_ranks)] if on_host == size else []
    steps = min(STEPS, max(2, report["steps"]))
    rounds = []
    if hvd.rank() == 0:
        print(f"measuring in turns: {', '.join(map(str, setups))}", file=sys.stderr, flush=True)
        measured = take_turns(setups, script, steps, arguments, options)
    for _ in range(turns.COUNT):  # hvd: the others wait for each turn
        rounds.append(hvd.broadcast_object(next(measured) if hvd.rank() == 0 else None, 0))
    if hvd.rank() == 0:
        list(measured)  # until the last training has ended
    speeds = [
        {
            "workers": setup.workers,
            "examples_per_s": statistics.median(found) * setup.workers * report["batch"],
            "turns_steps_per_s": found,
        }
        for setup, found in zip(setups, map(list, zip(*rounds[1:])))
    ]
    one = speeds[0]["examples_per_s"]
    report["one_worker_examples_per_s"] = one
    if on_host == size:
        independent = speeds.pop()
        report["independent_turns_steps_per_s"] = independent["turns_steps_per_s"]
        report["independent_examples_per_s"] = independent["examples_per_s"]
        report["independent_speed_up"] = independent["examples_per_s"] / one
    else:
        speeds.append({key: report[key] for key in ("workers", "examples_per_s")})
    report["speeds"] = speeds
    report["speed_up"] = speeds[-1]["examples_per_s"] / one
