# SPDX-License-Identifier: Apache-2.0
"""hvdrun with more ranks than a shell's usual limit of open files allows."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import MPICH, OPEN_MPI, facts, fake_mpirun, left_of, start, stop_left

RANKS = 40
SOFT = 64


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "tmp").exists():
        stop_left(tmp_path)


def run(job: Path, soft: int, hard: int, options: list[str]) -> subprocess.CompletedProcess[str]:
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}
    process = start(job, ["-np", str(RANKS), *options, "true"], **limit)
    out, err = process.communicate(timeout=30)
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


@pytest.mark.parametrize("version", [OPEN_MPI, MPICH])
def test_the_launcher_takes_what_it_may_and_its_children_have_what_was(
    job: Path, version: str
) -> None:
    limit = "resource.getrlimit(resource.RLIMIT_NOFILE)"
    fake_mpirun(job, f"import resource; note(limit={limit})", version)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    result = run(job, SOFT, hard, ["--output-filename", str(job / "logs")])
    assert (result.returncode, result.stderr) == (0, "")
    assert facts(job)["limit"] == [SOFT, hard]
    assert len(list((job / "logs").glob("rank.*/std*"))) == 2 * RANKS


@pytest.mark.parametrize(
    ("version", "options", "needed"),
    [
        (OPEN_MPI, ["--output-filename"], 2 * RANKS),
        (MPICH, [], 2 * RANKS),
        (MPICH, ["--output-filename"], 4 * RANKS),
        (OPEN_MPI, [], 0),
    ],
)
def test_what_is_needed_is_enough_and_less_is_refused(
    job: Path, version: str, options: list[str], needed: int
) -> None:
    fake_mpirun(job, "note()", version)
    options += [str(job / "logs")] * len(options)
    result = run(job, 16, 16, options)
    words = re.fullmatch(
        rf"hvdrun: -np {RANKS} needs (\d+) open files here, and 16 are allowed: raise the hard "
        r"limit of 'ulimit -n'(, or leave out --output-filename)?\n",
        result.stderr,
    )
    assert words is not None and bool(words[2]) == bool(options), result.stderr
    number = int(words[1])
    assert 16 < number - needed < 40
    result = run(job, number - 1, number - 1, options)
    assert result.returncode == 2 and f"needs {number} open files" in result.stderr
    assert not (job / "facts").exists() and left_of(job) == []
    result = run(job, number, number, options)
    assert (result.returncode, result.stderr) == (0, "") and (job / "facts").exists()


def test_a_limit_that_was_small_is_so_again() -> None:
    code = (
        "import resource as r\n"
        "from hvd_tf._internal.launcher.file_limit import FileLimit\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 128))\n"
        "with FileLimit(): print(r.getrlimit(r.RLIMIT_NOFILE))\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "(128, 128)\n(64, 128)\n", result.stderr
