# SPDX-License-Identifier: Apache-2.0
"""rank_main.py: the process that watches over a rank tells how it ends, and ends like it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mpi import ROOT

RANK_MAIN = ROOT / "hvd_tf" / "_internal" / "launcher" / "rank_main.py"
# The signals that end a process by default: not those that stop it, nor those that do nothing.
ENDING = sorted(
    set(signal.valid_signals())
    - {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
)
# Python ignores some, which a program that it becomes inherits.
DIE = (
    "import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0));"
    "n != signal.SIGKILL and signal.signal(n, signal.SIG_DFL); os.kill(os.getpid(), n)"
)
READY = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"


def started(
    directory: Path,
    rank: int,
    *command: str,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    group: bool = False,
) -> subprocess.Popen[bytes]:
    words = ["=" + "".join(f"%{byte:02x}" for byte in os.fsencode(word)) for word in command]
    variables = {"HVD_NOTICE": "abc", "HVD_JOB_DIR": str(directory), "PMIX_RANK": str(rank)}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(RANK_MAIN), *words],
        env={**os.environ, **variables, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=group,
        pass_fds=pass_fds,
    )


def python(directory: Path, rank: int, code: str, **options: Any) -> subprocess.Popen[bytes]:
    return started(directory, rank, sys.executable, "-c", code, **options)


def notice(directory: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / f"rank-{rank}.process").read_text())
    return found


def wait_for(directory: Path, rank: int, what: str) -> dict[str, Any]:
    """That notice, which is written after the command has begun."""
    deadline_s = time.monotonic() + 60
    while True:
        with suppress(FileNotFoundError):
            found = notice(directory, rank)
            if found["what"] == what:
                return found
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_statuses_and_signals_are_told_and_passed_on(tmp_path: Path) -> None:
    codes = {status: f"import os; os._exit({status})" for status in (0, 1, 3, 255)}
    codes |= {-number: f"n = {int(number)}; {DIE}" for number in ENDING}
    assert len(codes) > 30
    running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
    for rank, (status, code) in enumerate(codes.items()):
        running[status] = rank, python(tmp_path, rank, code)
    for status, (rank, process) in running.items():
        errors = process.communicate(timeout=60)[1]
        assert (process.returncode, errors) == (status, b"")
        found = notice(tmp_path, rank)
        assert (found["what"], found["status"], found["told"]) == ("ended", status, False)
        assert (found["rank"], found["host"]) == (rank, os.uname().nodename)
        assert found["pid"] != process.pid
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_mpichs_connection_closes_behind_the_notice(tmp_path: Path) -> None:
    # Its launcher kills the process that watches as soon as it closes.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        env = {"PMI_FD": str(number)}
        code = f"import os; os.write({number}, b'hi'); os._exit(3)"
        process = python(tmp_path, 0, code, env=env, pass_fds=[number])
        theirs.close()
        ours.settimeout(60)
        assert (ours.recv(9), ours.recv(9)) == (b"hi", b"")
        assert (notice(tmp_path, 0)["what"], notice(tmp_path, 0)["status"]) == ("ended", 3)
    assert process.wait(timeout=60) == 3


def test_an_end_that_cannot_be_told_leaves_no_notice(tmp_path: Path) -> None:
    # The rank would seem to run.
    process = python(tmp_path, 0, READY)
    pid = wait_for(tmp_path, 0, "running")["pid"]
    (tmp_path / ".rank-0.process").mkdir()  # no file can be made there, as on a full disk
    os.kill(pid, signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    assert not (tmp_path / "rank-0.process").exists()


def test_files_of_the_user_are_no_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a directory notices go to stderr, which nobody reads any more.
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "rank-0.process"
    mine.touch()
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "HVD_NOTICE": "abc", "HVD_JOB_DIR": "", "PMIX_RANK": "0"}
    command = [sys.executable, "-I", "-S", str(RANK_MAIN), "=true"]
    done = subprocess.run(command, env=env, stderr=write, timeout=60)
    os.close(write)
    assert done.returncode == 0
    assert mine.exists()


@pytest.mark.parametrize("group", [True, False], ids=["group", "process"])
def test_what_was_asked_to_end_says_so(tmp_path: Path, group: bool) -> None:
    # A command in a group of its own hears of what is sent to the process that watches.
    code = READY if group else f"import os; os.setpgid(0, 0); {READY}"
    process = python(tmp_path, 0, code, group=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == wait_for(tmp_path, 0, "running")["pid"]
    (os.killpg if group else os.kill)(process.pid, signal.SIGTERM)
    assert process.wait(timeout=20) == -signal.SIGTERM
    found = notice(tmp_path, 0)
    assert (found["status"], found["told"]) == (-signal.SIGTERM, True)


def test_a_signal_to_the_command_alone_is_its_own_affair(tmp_path: Path) -> None:
    process = python(tmp_path, 0, READY)
    assert process.stdout is not None
    os.kill(int(process.stdout.readline()), signal.SIGTERM)
    assert process.wait(timeout=20) == -signal.SIGTERM
    assert notice(tmp_path, 0)["told"] is False


def test_other_signals_reach_the_command_alone(tmp_path: Path) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
print(flush=True)
time.sleep(1000)
"""
    process = python(tmp_path, 0, code, group=True)
    assert process.stdout is not None and process.stdout.readline()
    os.killpg(process.pid, signal.SIGUSR1)
    assert process.wait(timeout=20) == 5
    assert notice(tmp_path, 0)["told"] is False


def test_a_stop_is_told(tmp_path: Path) -> None:
    process = python(tmp_path, 0, READY)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    for number, what in [(signal.SIGSTOP, "stopped"), (signal.SIGCONT, "running")]:
        os.kill(pid, number)
        wait_for(tmp_path, 0, what)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=20) == -signal.SIGKILL


def test_the_command_goes_with_who_watches(tmp_path: Path) -> None:
    process = python(tmp_path, 0, READY)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.kill()
    # Its end of the pipe closes when it has gone.
    assert process.stdout.read() == b""
    process.communicate(timeout=20)


def test_where_there_is_no_directory_stderr_is_told(tmp_path: Path) -> None:
    read, write = os.pipe()
    code = f"import os; os.read({read}, 1); os.write(2, b'half'); os._exit(3)"
    process = python(tmp_path / "none", 4, code, pass_fds=[read])
    assert process.stderr is not None
    errors = process.stderr.readline()
    os.write(write, b"x")  # the first notice is there: the command may write now
    errors += process.communicate(timeout=60)[1]
    for descriptor in (read, write):
        os.close(descriptor)
    first, line, text = errors.split(b"\x1e")
    assert first == b"" and line.endswith(b"\nhalf") and text.endswith(b"\n")
    assert json.loads(line.removeprefix(b"abc ").removesuffix(b"half"))["what"] == "running"
    found = json.loads(text.removeprefix(b"abc "))
    assert (found["what"], found["rank"], found["status"]) == ("ended", 4, 3)


@pytest.mark.parametrize("env", [{"HVD_NOTICE": ""}, {"PMIX_RANK": ""}])
def test_without_a_launcher_that_asks_nothing_is_told(tmp_path: Path, env: dict[str, str]) -> None:
    process = python(tmp_path, 0, "raise SystemExit(3)", env=env)
    assert process.communicate(timeout=20) == (b"", b"") and process.returncode == 3
    assert list(tmp_path.iterdir()) == []


def test_the_watching_process_holds_nothing(tmp_path: Path) -> None:
    """What mpirun has given to a rank is the command's alone: a pipe ends when it closes it."""
    read, write = os.pipe()
    code = f"import os, time; os.close({write}); os.close(1); time.sleep(1000)"
    process = python(tmp_path, 0, code, pass_fds=[write])
    os.close(write)
    assert os.read(read, 1) == b""
    assert process.stdout is not None and process.stdout.read() == b""
    assert process.poll() is None
    os.close(read)
    process.kill()
    process.communicate(timeout=20)
