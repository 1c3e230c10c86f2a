# SPDX-License-Identifier: Apache-2.0
"""What crosses the network between hosts: no byte more often than it must."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import two_hosts
from mpi import Job

PROGRAM = Path(__file__).with_name("network_bytes_program.py")
HOSTS = 2
RANKS_PER_HOST = 2
ALLOWED = 1.05


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the ranks have measured, by rank."""
    reason = two_hosts.why_not()
    if reason:
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("facts")
    ranks = HOSTS * RANKS_PER_HOST
    program = [sys.executable, str(PROGRAM), str(directory)]
    env = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    with two_hosts.TwoHosts() as hosts:
        launcher = hosts.mpirun(RANKS_PER_HOST)
        with Job(program, ranks, launcher=launcher, env=env) as job:
            result = job.wait(timeout_s=180)
    assert result.returncode == 0 and not result.timed_out, result.text
    assert result.leftovers == []
    return [json.loads((directory / f"facts-{rank}.json").read_text()) for rank in range(ranks)]


def test_the_ranks_are_on_two_hosts(facts: list[dict[str, Any]]) -> None:
    assert [one["local_rank"] for one in facts] == [0, 1, 0, 1]
    assert [one["cross_rank"] for one in facts] == [0, 0, 1, 1]
    assert all(one["local_size"] == RANKS_PER_HOST for one in facts)
    assert all(one["cross_size"] == HOSTS for one in facts)


def test_an_allreduce_sends_what_a_ring_over_hosts_would(facts: list[dict[str, Any]]) -> None:
    least = 2 * (HOSTS - 1) / HOSTS
    for one in facts:
        assert least <= one["allreduce"] <= ALLOWED * least


def test_an_allgather_sends_what_the_host_has_once(facts: list[dict[str, Any]]) -> None:
    least = RANKS_PER_HOST * (HOSTS - 1)
    for one in facts:
        assert least <= one["allgather"] <= ALLOWED * least


def test_a_broadcast_enters_each_host_once(facts: list[dict[str, Any]]) -> None:
    # The root is on the first host. The other one has nothing to send but acknowledgements.
    for one in facts:
        if one["cross_rank"] == 0:
            assert 1 <= one["broadcast"] <= ALLOWED
        else:
            assert one["broadcast"] <= ALLOWED - 1
