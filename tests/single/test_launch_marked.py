# SPDX-License-Identifier: Apache-2.0
"""The job's processes are found by a variable of their environment, whatever they do just now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from hvd_tf._internal.launcher import marked


def test_a_slow_look_at_the_processes_still_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    look = marked.pids_within

    def slow_look(variable: str, value: str) -> list[int]:
        found = look(variable, value)
        time.sleep(0.2)
        return found

    monkeypatch.setattr(marked, "pids_within", slow_look)
    monkeypatch.setattr(marked, "_SWEEP_LIMIT_S", 0.1)
    one = subprocess.Popen(["sleep", "1000"], env={**os.environ, "HVD_MARK": "slow look"})
    try:
        marked.kill_marked("HVD_MARK", "slow look")
        assert one.wait(timeout=60) == -signal.SIGKILL
    finally:
        one.kill()
        one.wait()


def test_a_job_within_a_job_ends_with_it() -> None:
    env = dict(os.environ)
    for value in ("/outer", "/middle", "/inner"):
        marked.mark(env, "HVD_MARK", value)
    one = subprocess.Popen(["sleep", "1000"], env=env)
    try:
        assert marked.pids_of("HVD_MARK", "/inner") == [one.pid]
        assert marked.pids_of("HVD_MARK", "/outer") == []
        assert marked.pids_within("HVD_MARK", "/middle") == [one.pid]
        marked.kill_marked("HVD_MARK", "/out")
        assert one.poll() is None
        marked.kill_marked("HVD_MARK", "/outer")
        assert one.wait(timeout=60) == -signal.SIGKILL
    finally:
        one.kill()
        one.wait()


def test_a_process_that_has_just_been_started_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment the kernel shows no environment of it. That is longer where it is large."""
    monkeypatch.setattr(marked, "_EXEC_LIMIT_S", 60.0)  # the moment is as long as it takes
    env = {**os.environ, "HVD_MARK": "new", **{f"HVD_FILL_{i}": "x" for i in range(5000)}}
    for _ in range(50):
        one = subprocess.Popen(["sleep", "1000"], env=env)
        try:
            assert b"HVD_MARK=new" in marked.environment(one.pid)
        finally:
            one.kill()
            one.wait()


def test_what_has_no_environment_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_s = 60.0
    monkeypatch.setattr(marked, "_EXEC_LIMIT_S", wait_s)
    bare = subprocess.Popen(["/bin/sleep", "1000"], env={})
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    try:
        begin = time.monotonic()
        assert marked.environment(bare.pid) in ([], [b""])
        assert marked.environment(ended.pid) in ([], [b""])
        assert time.monotonic() - begin < wait_s
    finally:
        bare.kill()
        bare.wait()
        ended.wait()


# The kernel keeps 15 bytes of a name, here half of a letter.
HALF_A_LETTER = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, b"name \\xd0", 0, 0, 0)
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
"""


def named(seconds: float, **arguments: Any) -> subprocess.Popen[bytes]:
    env = {**os.environ, "HVD_MARK": "half a letter"}
    command = [sys.executable, "-c", HALF_A_LETTER, str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, **arguments)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


def test_a_name_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that runs, of one that has ended, and of one that holds an output open."""
    runs, ended = named(1000), named(0)
    try:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert marked.runs(runs.pid) and not marked.runs(ended.pid)
        assert marked.environment(ended.pid) == []
        assert not marked.has_collected_children(runs.pid)
        (words,) = marked.end_strays("HVD_MARK", "half a letter", os.getpid())
        assert words.encode(errors="surrogateescape") == b"name \xd0 (pid %d)" % runs.pid
        assert runs.wait(timeout=60) == -signal.SIGKILL
    finally:
        for one in (runs, ended):
            one.kill()
            one.wait()
