# SPDX-License-Identifier: Apache-2.0
"""hvd_tf.run: a function's results of all ranks, and a job that fails."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import run_functions
from launching import wait_until_gone

import hvd_tf
from hvd_tf._internal import run as run_module


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)  # away from the sources, which `-m` would import
    return tmp_path


def test_results_come_in_the_order_of_ranks(private: Path) -> None:
    results = hvd_tf.run(run_functions.train, (3,), {"add": 1}, np=2)
    assert results == [{"rank": rank, "mean": 2.5} for rank in range(2)]
    assert list(private.iterdir()) == []


def test_a_failed_job(private: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="the job failed with status 1: its output says why"):
        hvd_tf.run(run_functions.fail, num_proc=2)
    assert "KeyError: 'wrong shoe size'" in capfd.readouterr().err
    assert list(private.iterdir()) == []


def test_commits_are_of_a_call_with_these_arguments(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (private / "commits").mkdir()
    monkeypatch.setenv("HVD_ELASTIC_DIR", str(private / "commits"))
    mark = {"mark": str(private / "mark")}
    with pytest.raises(RuntimeError, match="the job failed"):
        hvd_tf.run(run_functions.train_from_commit, (0.5,), mark)
    assert hvd_tf.run(run_functions.train_from_commit, (0.01,), mark) == [(0.01, 0)]
    assert hvd_tf.run(run_functions.train_from_commit, (0.5,), mark) == [(0.5, 6)]


def test_ranks_that_are_jobs_of_their_own(private: Path) -> None:
    # Another module of that name in the working directory, which is not in the caller's path.
    (private / "run_functions.py").write_text("def ranks_alone(): return 'another'\n")
    assert hvd_tf.run(run_functions.ranks_alone, np=2) == [1, 11]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (run_functions.fail_before_init, "KeyError: 'wrong shoe size'"),
        (run_functions.fail_after_shutdown, "KeyError: 'wrong shoe size'"),
        (run_functions.exit_before_init, "the function ended by SystemExit(wrong shoe size)"),
    ],
)
def test_a_rank_that_fails_where_hvd_does_not_run(
    function: Any, words: str, private: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match="the job failed with status 1"):
        hvd_tf.run(function, num_proc=2)
    _, heading, last = capfd.readouterr().err.rpartition(") failed first:\n")
    assert heading and words in last


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"hosts": "a:1", "hostfile": "x"}, ValueError, "pass hosts or hostfile, not both"),
        ({"use_gloo": True, "use_mpi": True}, ValueError, "pass use_gloo or use_mpi, not both"),
        ({"use_gloo": True}, NotImplementedError, "leave it out, MPI is used"),
        ({"min_np": 2}, NotImplementedError, "min_np is not offered: the number of ranks stays"),
        ({"host_discovery_script": "x"}, NotImplementedError, "is not offered: pass hosts"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any], error: type[Exception], words: str, private: Path
) -> None:
    with pytest.raises(error, match=words):
        hvd_tf.run(run_functions.train, **arguments)
    assert list(private.iterdir()) == []


def test_what_cannot_be_pickled(private: Path) -> None:
    with pytest.raises(ValueError, match="argument cannot be pickled: no, thanks"):
        hvd_tf.run(run_functions.train, [Unpicklable()])


class Unpicklable:
    """Refuses to be pickled."""

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("no, thanks")


def test_arguments_of_a_class_of_the_program_are_known_again() -> None:
    """By another process, whatever pickles it otherwise."""
    text = (
        "import dataclasses, hvd_tf._internal.run as run\n"
        "@dataclasses.dataclass\n"
        "class Config:\n"
        "    rate: float\n"
        "    scale: object = lambda x: 2 * x\n"
        "print(*(run._digest(((Config(rate),), [])) for rate in (0.5, 0.1)))\n"
    )
    command = [sys.executable, "-c", text]
    first, second = (subprocess.check_output(command, text=True).split() for _ in range(2))
    assert first == second
    assert len(set(first)) == 2


def test_interfaces_as_a_list(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def note(command: list[str], env: Any) -> int:
        commands.append(command)
        return 1

    monkeypatch.setattr(run_module, "_status_of", note)
    for interfaces in (["eth0", "eth1"], "eth0,eth1"):
        with pytest.raises(RuntimeError, match="the job failed with status 1"):
            hvd_tf.run(run_functions.train, network_interfaces=interfaces)
    assert all("--network-interfaces=eth0,eth1" in command for command in commands)
    assert len(commands) == 2


# Stands for the Python of a rank: `python -m ... DIRECTORY`, which is the call's.
RANK = """#!/bin/sh
echo $$ "$3" > {directory}/rank.new
mv {directory}/rank.new {directory}/rank
exec sleep 100
"""
# Its launcher inherits what it ignores.
CALLER = """
import signal, sys, time, hvd_tf
def stop(number, frame): raise KeyError("told")
if "raises" in sys.argv: signal.signal(signal.SIGTERM, stop)
if "deaf" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd_tf.run(time.sleep, (1,), executable="{directory}/rank-python")
"""


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGTERM, ""),
        (signal.SIGKILL, ""),
        (signal.SIGKILL, "deaf"),
        (signal.SIGTERM, "raises"),
        (signal.SIGINT, ""),
    ],
)
def test_a_job_ends_with_its_caller(private: Path, number: int, how: str) -> None:
    (private / "rank-python").write_text(RANK.format(directory=private))
    (private / "rank-python").chmod(0o755)
    (private / "tmp").mkdir()
    with (
        (private / "errors").open("wb") as errors_file,
        subprocess.Popen(
            [sys.executable, "-c", CALLER.format(directory=private), how],
            env={**os.environ, "TMPDIR": str(private / "tmp")},
            stderr=errors_file,
        ) as caller,
    ):
        wait_for((private / "rank").exists)
        caller.send_signal(number)
    pid, directory = (private / "rank").read_text().split()
    assert Path(directory).parent == private / "tmp"
    wait_until_gone([int(pid)])
    wait_for(lambda: list((private / "tmp").iterdir()) == [])
    errors = (private / "errors").read_text()
    assert ("KeyError: 'told'" in errors) == (how == "raises")
    assert f"hvdrun: stopped by SIG{'INT' if how == 'deaf' else 'TERM'}" in errors


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
