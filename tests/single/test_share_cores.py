# SPDX-License-Identifier: Apache-2.0
"""hvdrun --share-cores: each rank of a host gets whole cores of its own, as many as the others."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from launching import MPICH, OPEN_MPI, facts, fake_mpirun, run
from mpi import ROOT

_SPEC = importlib.util.spec_from_file_location(
    "rank_main", ROOT / "hvd_tf" / "_internal" / "launcher" / "rank_main.py"
)
assert _SPEC is not None and _SPEC.loader is not None
rank_main = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rank_main)

CORES = sorted(os.sched_getaffinity(0))
SHOW = """
import json, os
print(json.dumps([sorted(os.sched_getaffinity(process)) for process in (0, os.getppid())]))
"""
# Two packages of two cores of two hyperthreads, numbered as Linux mostly does.
HYPERTHREADS = {n: (n // 2 % 2, n % 2) for n in range(8)}


def shares(processors: dict[int, tuple[int, int]], ranks: int) -> list[set[int]]:
    return [rank_main.share(processors, rank, ranks) for rank in range(ranks)]


def test_hyperthreads_of_a_core_and_cores_of_a_package_stay_together() -> None:
    assert shares(HYPERTHREADS, 1) == [set(range(8))]
    assert shares(HYPERTHREADS, 2) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert shares(HYPERTHREADS, 4) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]


def test_each_core_has_one_rank_and_shares_differ_by_one_core_at_most() -> None:
    for count in range(1, 20):
        processors = {3 * number: (0, number) for number in range(count)}
        for ranks in range(1, count + 1):
            found = shares(processors, ranks)
            assert sorted(number for each in found for number in each) == sorted(processors)
            sizes = {len(each) for each in found}
            assert max(sizes) - min(sizes) <= 1


def test_fewer_cores_than_ranks_are_not_shared() -> None:
    assert shares(HYPERTHREADS, 5) == [set()] * 5


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (OPEN_MPI, ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")),
        (MPICH, ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
    ],
)
def test_the_command_is_bound_and_its_parent_is_not(
    tmp_path: Path, version: str, names: tuple[str, str]
) -> None:
    processors = {number: rank_main.core_of(number) for number in CORES}
    ranks = len(set(processors.values()))
    body = f"""
for rank in range({ranks}):
    env = {{**os.environ, {names[0]!r}: str(rank), {names[1]!r}: "{ranks}"}}
    with open(os.path.join(me, str(rank)), "w") as file:
        subprocess.run(command, env=env, stdout=file)
"""
    fake_mpirun(tmp_path, body, version)
    result = run(tmp_path, ["-np", str(ranks), "--share-cores", sys.executable, "-c", SHOW])
    assert (result.returncode, result.stderr) == (0, "")
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(ranks)]
    own = [sorted(each) for each in shares(processors, ranks)]
    assert found == [[each, CORES] for each in own]


@pytest.mark.parametrize("local", [{}, {"LOCAL_RANK": "1", "LOCAL_SIZE": "100000"}])
def test_nothing_is_bound_where_there_is_no_share(tmp_path: Path, local: dict[str, str]) -> None:
    fake_mpirun(tmp_path, "run_ranks(1)")
    env = {f"OMPI_COMM_WORLD_{name}": value for name, value in local.items()}
    # The fake hands on what it is given.
    result = run(tmp_path, ["-np", "1", "--share-cores", sys.executable, "-c", SHOW], env)
    assert json.loads(result.stdout) == [CORES, CORES]
    assert result.stderr == ""


def test_a_host_with_too_few_cores_says_so_once(tmp_path: Path) -> None:
    ranks = len(CORES) + 1
    result = run(
        tmp_path,
        ["-np", str(ranks), "--share-cores", sys.executable, "-c", SHOW],
        prefix=Path(sys.prefix),  # the real mpirun
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == ranks
    assert result.stderr.count("--share-cores binds nothing on") == 1
    assert f"core(s) for {ranks} ranks" in result.stderr


def test_a_real_job_is_bound(tmp_path: Path) -> None:
    ranks = len({rank_main.core_of(number) for number in CORES})
    result = run(
        tmp_path,
        ["-np", str(ranks), "--share-cores", sys.executable, "-c", SHOW],
        prefix=Path(sys.prefix),
    )
    assert (result.returncode, result.stderr) == (0, "")
    found = [json.loads(line.partition("] ")[2]) for line in result.stdout.splitlines()]
    assert sorted(number for own, _ in found for number in own) == CORES
    assert all(parent == CORES for _, parent in found)


@pytest.mark.parametrize("binding", ["--binding-args=--bind-to core", "--mpi-args=-bind-to=none"])
def test_a_second_binding_is_refused(tmp_path: Path, binding: str) -> None:
    fake_mpirun(tmp_path, "note()")
    result = run(tmp_path, ["-np", "1", "--share-cores", binding, "true"])
    assert result.returncode == 2
    assert "--share-cores and a --bind-to of mpirun bind both" in result.stderr


def test_without_it_nothing_is_bound(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "note(arguments=sys.argv)")
    assert run(tmp_path, ["-np", "1", "true"]).returncode == 0
    assert facts(tmp_path)["arguments"][-1] == "=true"
    assert facts(tmp_path)["arguments"][-2].endswith("rank_main.py")
