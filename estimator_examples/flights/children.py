# SPDX-License-Identifier: Apache-2.0
"""Programs that run at the same time as children of this one, and that end with it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

LAUNCHER = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "MPI_")  # what mpirun puts into it


def alone_environment() -> dict[str, str]:
    """The environment without what mpirun added, so that a child process is on its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER)}


@contextmanager
def _on_cores(cores: Optional[Collection[int]]) -> Iterator[None]:
    """What this thread starts meanwhile may use these processors, and no others."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # of this thread alone, and a child has those of its thread
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def together(
    commands: Sequence[Sequence[str]],
    cores: Optional[Sequence[Collection[int]]] = None,
    limit_s: float = float("inf"),
) -> Iterator[Callable[[], bool]]:
    """Run them at the same time, each on its own, until this block ends.

    Args:
      commands: what to run.
      cores: the processors that each may use. None: those of this process.
      limit_s: how long they may take.

    Yields:
      What tells whether any of them still runs. It raises RuntimeError when one has failed or they
      took longer, which says what was printed.
    """
    end_s = time.monotonic() + limit_s
    children: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(number)) for number in range(len(commands))]

        def running() -> bool:
            found = any(child.poll() is None for child in children)
            _check(children, outputs)
            if found and time.monotonic() > end_s:
                said = outputs[0].read_text()
                raise RuntimeError(f"{commands[0]} did not end in {limit_s} s:\n{said}")
            return found

        try:
            for number, (command, output) in enumerate(zip(commands, outputs)):
                with output.open("w") as file, _on_cores(cores and cores[number]):
                    children.append(
                        subprocess.Popen(
                            command, env=alone_environment(), stdout=file, stderr=subprocess.STDOUT
                        )
                    )
            yield running
        finally:
            for child in children:
                child.terminate()  # a launcher ends its ranks; nothing happens to those that ended
            for child in children:
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def run_together(commands: Sequence[Sequence[str]], limit_s: float) -> None:
    """Run them at the same time, each on its own, and wait for all. When one fails, all end.

    Args:
      commands: what to run.
      limit_s: how long they may take.

    Raises:
      RuntimeError: one failed, or they took longer; says what was printed.
    """
    with together(commands, limit_s=limit_s) as running:
        while running():
            time.sleep(0.02)


def _check(children: Sequence[subprocess.Popen], outputs: Sequence[Path]) -> None:
    for child, output in zip(children, outputs):
        if child.poll():
            raise RuntimeError(f"{child.args} failed:\n{output.read_text()}")
