# SPDX-License-Identifier: Apache-2.0
"""Programs that run at the same time as children of this one, and that end with it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

LAUNCHER = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "MPI_")  # what mpirun puts into it


def alone_environment() -> dict[str, str]:
    """The environment without what mpirun added, so that a child process is on its own."""
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER)}


def run_together(commands: Sequence[Sequence[str]], limit_s: Optional[float] = None) -> None:
    """Run them at the same time, each on its own, and wait for all. When one fails, all end.

    Raises:
      RuntimeError: one failed, or they took longer than the limit; says what it printed.
    """
    end_s = float("inf") if limit_s is None else time.monotonic() + limit_s
    children: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(number)) for number in range(len(commands))]
        try:
            for command, output in zip(commands, outputs):
                with output.open("w") as file:
                    children.append(
                        subprocess.Popen(
                            command, env=alone_environment(), stdout=file, stderr=subprocess.STDOUT
                        )
                    )
            while any(child.poll() is None for child in children):
                _check(children, outputs)
                if time.monotonic() > end_s:
                    said = outputs[0].read_text()
                    raise RuntimeError(f"{commands[0]} did not end in {limit_s} s:\n{said}")
                time.sleep(0.02)
            _check(children, outputs)
        finally:
            for child in children:
                child.terminate()  # a launcher ends its ranks; nothing happens to those that ended
            for child in children:
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def _check(children: Sequence[subprocess.Popen], outputs: Sequence[Path]) -> None:
    for child, output in zip(children, outputs):
        if child.poll():
            raise RuntimeError(f"{child.args} failed:\n{output.read_text()}")
