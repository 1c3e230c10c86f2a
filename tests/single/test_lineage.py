# SPDX-License-Identifier: Apache-2.0
"""Which processes take themselves for the rank that has started them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from mpi import ROOT

# Arguments: hvd_tf's directory, and what a rank runs after its claim.
RANK = """
import os, subprocess, sys, types
package = types.ModuleType("hvd_tf")
package.__path__ = [sys.argv[1]]
sys.modules["hvd_tf"] = package
from hvd_tf._internal import lineage
lineage.check()
print("a rank", flush=True)
def child(*before, **env):
    command = [*before, sys.executable, "-c", os.environ['CODE'], sys.argv[1], ""]
    subprocess.run(command, env={**os.environ, **env}, check=False)
lineage.claim()
exec(sys.argv[2])
"""
TOLD = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "job", "PMIX_RANK": "0", "CODE": RANK}
FORK = "sys.exit(lineage.check()) if os.fork() == 0 else os.wait()"


@pytest.mark.parametrize(
    ("runs", "size", "is_refused"),
    [
        ("child()", 2, True),
        ("child('sh', '-c', '\"$0\" \"$@\"; true')", 2, True),
        (FORK, 2, True),
        ("child()", 1, False),  # MPI does not mind
        ("child(PMIX_NAMESPACE='another job')", 2, False),
        ("child(PMIX_RANK='1')", 2, False),
        ("child(OMPI_COMM_WORLD_SIZE='')", 2, False),  # a job of its own
        ("child(HVD_RANK_PROCESS='1')", 2, False),
        (
            "os.execv(sys.executable, ['p', '-c', os.environ['CODE'], sys.argv[1], ''])",
            2,
            False,
        ),  # still the rank
    ],
)
def test_what_a_rank_starts(runs: str, size: int, is_refused: bool) -> None:
    told = {**TOLD, "OMPI_COMM_WORLD_SIZE": str(size)}
    command = [sys.executable, "-c", RANK, str(ROOT / "hvd_tf"), runs]
    done = subprocess.run(
        command, env={**os.environ, **told}, capture_output=True, text=True, check=False, timeout=60
    )
    said = "RuntimeError: hvd.init(): this process was started by rank 0 (pid "
    assert (said in done.stderr) == is_refused, done.stderr
    assert done.stdout.count("a rank") == (1 if is_refused else 2), done.stderr


def test_programs_one_after_another_are_ranks() -> None:
    one = f'"$0" -c "$1" {ROOT / "hvd_tf"} \'\''
    command = ["sh", "-c", f"{one}; {one}", sys.executable, RANK]
    done = subprocess.run(
        command, env={**os.environ, **TOLD}, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.count("a rank") == 2
