# SPDX-License-Identifier: Apache-2.0
"""hvdrun --restarts: a rank is killed at random moments, and the job ends as if nothing happened.

HVD_TEST_FAULT_REPEATS=20 does it so often, instead of once.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from mpi import Job, Result, run_ranks

PROGRAM = Path(__file__).with_name("resume_program.py")
REPEATS = range(int(os.environ.get("HVD_TEST_FAULT_REPEATS", "1")))
RANKS = 2
KILLS = 2
# About as long as importing and training take on a machine with nothing else to do.
LONGEST_DELAY_S = 6.0


def command(model_dir: Path) -> list[str]:
    # Asks for the step first: a job whose rank is killed at its very end has no step left to do.
    return [sys.executable, str(PROGRAM), "own_loop", str(model_dir)]


def weights(output: str) -> list[str]:
    """As rank 0 has printed them at the end, without the launcher's heads."""
    return re.findall(r"^(?:\[0\] )?(\S+:0 [0-9a-f]+)$", output, re.MULTILINE)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    result = run_ranks(command(tmp_path_factory.mktemp("uninterrupted")), RANKS, timeout_s=120)
    assert result.returncode == 0, result.text
    found = weights(result.outputs[0])
    assert len(found) == 6, result.text
    return found


def ranks_of(job: Job) -> list[int]:
    """The processes that are ranks, from the moment at which mpirun starts them."""
    found = []
    for pid in job.processes():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(text.startswith(b"OMPI_COMM_WORLD_RANK=") for text in environ):
            found.append(pid)
    return found


def kill_one(job: Job, draw: random.Random) -> bool:
    """Kills a rank after a while; False where the job ended before."""
    deadline = time.monotonic() + 30
    while len(ranks_of(job)) < RANKS and time.monotonic() < deadline:
        if job.process.poll() is not None:
            return False
        time.sleep(0.01)
    time.sleep(draw.uniform(0, LONGEST_DELAY_S))
    pids = ranks_of(job)
    if not pids:
        return False
    try:
        os.kill(draw.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def train_and_kill(model_dir: Path, draw: random.Random) -> Result:
    hvdrun = [sys.executable, "-m", "hvd_tf.launch", "-np", str(RANKS)]
    launcher = [*hvdrun, "--restarts", str(KILLS)]
    with Job(command(model_dir), RANKS, launcher=launcher) as job:
        for restart in range(1, KILLS + 1):
            if not kill_one(job, draw):
                break
            again = f"starting it again (restart {restart} of {KILLS})"
            while again not in job.launcher_output() and job.process.poll() is None:
                time.sleep(0.01)
        return job.wait(timeout_s=180)


@pytest.mark.parametrize("repeat", REPEATS)
def test_killed_at_random_moments(repeat: int, tmp_path: Path, uninterrupted: list[str]) -> None:
    result = train_and_kill(tmp_path, random.Random(repeat))
    assert result.returncode == 0 and not result.timed_out, result.text
    assert result.leftovers == [], result.text
    text = result.launcher_output
    assert all(f"[{rank}] trained" in text for rank in range(RANKS)), text
    # The last start's, for one that was killed at its very end may have printed them too.
    assert weights(text)[-len(uninterrupted) :] == uninterrupted, text
    assert 'model_checkpoint_path: "' in (tmp_path / "checkpoint").read_text()
    assert "-100" in (tmp_path / "checkpoint").read_text().splitlines()[0]
