# SPDX-License-Identifier: Apache-2.0
"""A rank is killed at a random moment: the others end without help, and nothing is left of the job.

HVD_TEST_STRESS_S=300 goes on for so many seconds with further moments. A failure names its seed.
HVD_TEST_STRESS_SEED=7 begins with that one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from cases import in_full
from launching import waiting_hvdrun
from mpi import Job

PROGRAM = Path(__file__).with_name("kill_program.py")
# About as long as each takes on two cores. The program stays in its phase until it is killed; only
# its exit may be over before.
PHASES_S = {"import": 3.0, "init": 0.4, "batches": 1.5, "shutdown": 0.4, "exit": 0.3}
FEW = ("import", "batches", "shutdown")
ENVIRONMENTS: list[tuple[dict[str, str], int]] = [({}, 0), ({"HVD_SHM": "0"}, 0), ({}, 2), ({}, 1)]
SEED = int(os.environ.get("HVD_TEST_STRESS_SEED", "1"))


def kill_at_some_moment(phase: str, seed: int) -> None:
    draw = random.Random(f"{phase} {seed}")
    n = draw.choice([2, 3, 4])
    env, ranks_a_host = ENVIRONMENTS[seed % len(ENVIRONMENTS)]
    victim, delay_s = draw.randrange(n), draw.uniform(0, PHASES_S[phase])
    what = f"seed {seed}: rank {victim} of {n} in {phase} after {delay_s:.3f} s, {env}, "
    what += f"{ranks_a_host} ranks a host\n"
    command = [sys.executable, str(PROGRAM), str(ranks_a_host), phase, str(victim)]
    with Job(command, n, env, launcher=waiting_hvdrun("-np", str(n))) as job:
        job.wait_for(f"[{victim}] phase {phase}")
        time.sleep(delay_s)
        killed = _kill(job.pid(victim))
        result = job.wait(60)
    what += result.text
    assert not result.timed_out, what
    assert result.returncode == 137 or (phase == "exit" and result.returncode == 0), what
    assert killed or result.returncode == 0, what
    assert result.leftovers == [], f"{result.leftovers}: {what}"


def _kill(pid: int) -> bool:
    """False: it had ended before."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "phase",
    [p if p in FEW else pytest.param(p, marks=in_full) for p in PHASES_S],
)
def test_a_rank_is_killed(phase: str) -> None:
    # Each with another way for the ranks to be connected.
    kill_at_some_moment(phase, SEED + list(PHASES_S).index(phase))


@pytest.mark.skipif("HVD_TEST_STRESS_S" not in os.environ, reason="HVD_TEST_STRESS_S is not set")
def test_ranks_are_killed_for_a_while() -> None:
    end = time.monotonic() + float(os.environ["HVD_TEST_STRESS_S"])
    seed = SEED
    while time.monotonic() < end:
        for phase in PHASES_S:
            kill_at_some_moment(phase, seed)
        seed += 1
