# SPDX-License-Identifier: Apache-2.0
"""hvdrun -H over two hosts: where ranks run, what they get, and how the job ends.

What starts a host's ranks is not ssh, but leaves them as little: no environment, no directory.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import two_hosts
from cases import in_full
from launching import wait_until_gone
from mpi import PACKAGE, Job, is_open_mpi

PROGRAM = Path(__file__).with_name("hosts_program.py")
RANKS_A_HOST = 2
# No other job on this machine has it.
SECRET = f"sesame-{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def hosts() -> Iterator[two_hosts.TwoHosts]:
    reason = two_hosts.why_not()
    if reason:
        pytest.skip(reason)
    with two_hosts.TwoHosts(as_ssh=True) as made:
        yield made


def started(
    hosts: two_hosts.TwoHosts, directory: Path, *arguments: str, ranks_a_host: int = 1
) -> Job:
    where = ",".join(f"{address}:{ranks_a_host}" for address in hosts.addresses)
    ranks = len(hosts.addresses) * ranks_a_host
    mine = f"--mpi-args={shlex.join(hosts.mpi_arguments())}"
    hvdrun = [sys.executable, "-m", "hvd_tf.launch", "-np", str(ranks), "-H", where, mine]
    options = ["-x", "MINE", "-x", "PRIVATE=a b", "--start-timeout", "60"]
    parts = [f"--unset=OMPI_MCA_{part}_sm_backing_directory" for part in ("btl", "osc")]
    launcher = [*hosts.first(), "env", *parts, *hvdrun, *options]
    # For a tree without an installed distribution. Its name makes the launcher pass it on.
    env = {"MINE": SECRET, "HVD_A": "1", "PYTHONPATH": str(PACKAGE.parent)}
    program = [sys.executable, str(PROGRAM), str(directory), *arguments]
    return Job(program, ranks, env, launcher=launcher)


def facts(directory: Path) -> list[dict[str, Any]]:
    """By rank."""
    files = sorted(directory.glob("facts-*.json"))
    return [json.loads(file.read_text()) for file in files]


def wait_for_ranks(job: Job) -> None:
    for rank in range(job.n):
        job.wait_for(f"[{rank}] written")


def test_ranks_on_two_hosts(hosts: two_hosts.TwoHosts, tmp_path: Path) -> None:
    words = ("a b", ":", "--map-by", "'$HOME'")
    with started(hosts, tmp_path, *words, ranks_a_host=RANKS_A_HOST) as job:
        result = job.wait(timeout_s=120)
    assert result.returncode == 0 and not result.timed_out, result.text
    assert result.leftovers == []
    found = facts(tmp_path)
    first, other = hosts.addresses
    assert [one["host"] for one in found] == [first, first, other, other]
    assert [one["local_rank"] for one in found] == [0, 1, 0, 1]
    assert [one["cross_rank"] for one in found] == [0, 0, 1, 1]
    assert [one["total"] for one in found] == [10.0] * len(found)
    assert all(one["arguments"] == [*words] for one in found)
    values = {"HVD_A": "1", "MINE": SECRET, "PRIVATE": "a b", "HVD_RESTART": "0"}
    assert all(values.items() <= one["variables"].items() for one in found)
    # Only ranks of the launcher's host know its directories.
    assert [one["variables"]["HVD_JOB_DIR"] is None for one in found] == [False, False, True, True]
    if is_open_mpi():
        assert [one["backing"] is None for one in found] == [False, False, True, True]
    # Their notices of the start were taken out.
    assert result.launcher_output.count("] written\n") == len(found) and "\x1e" not in result.text


def check_command_lines() -> None:
    """No value of a variable stands on one."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue
        assert SECRET.encode() not in line


@pytest.mark.parametrize("frozen", [pytest.param(False, marks=in_full), True])
def test_ctrl_c(hosts: two_hosts.TwoHosts, tmp_path: Path, frozen: bool) -> None:
    with started(hosts, tmp_path, "forever") as job:
        wait_for_ranks(job)
        pids = [one["pid"] for one in facts(tmp_path)]
        if frozen:
            os.kill(pids[1], signal.SIGSTOP)
        job.process.send_signal(signal.SIGINT)
        wait_until_gone(pids)
        result = job.wait(60)
    assert result.returncode == 130 and result.leftovers == [], result.text


def test_a_killed_rank_of_the_other_host(hosts: two_hosts.TwoHosts, tmp_path: Path) -> None:
    with started(hosts, tmp_path, "forever") as job:
        wait_for_ranks(job)
        pids = [one["pid"] for one in facts(tmp_path)]
        os.kill(pids[1], signal.SIGKILL)
        wait_until_gone(pids)
        # Where mpirun does not end, which happens once in seven times or so, the launcher ends it.
        result = job.wait(60)
    # That of the killed rank, or of MPI in a peer, which may notice before mpirun does.
    assert result.returncode not in (0, -signal.SIGKILL) and not result.timed_out, result.text
    assert result.leftovers == [], result.text


def test_a_killed_launcher(hosts: two_hosts.TwoHosts, tmp_path: Path) -> None:
    with started(hosts, tmp_path, "forever") as job:
        wait_for_ranks(job)
        pids = [one["pid"] for one in facts(tmp_path)]
        check_command_lines()
        assert SECRET not in job.launcher_output()
        job.process.kill()
        wait_until_gone(pids)
        result = job.wait(60)
    assert result.leftovers == [], result.text
