# SPDX-License-Identifier: Apache-2.0
"""hvdrun where something is missing that programs take for granted: HOME, streams, room."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import facts, fake_mpirun, launcher, left_of, run, start

from hvd_tf._internal.launcher.rank_main import STDIN

# Open MPI's: it ends like this.
NEEDS_HOME = """#!/bin/sh
[ "$HOME" ] || { echo "Error: no home directory" >&2; exit 1; }
exec "$0.real" "$@"
"""


def test_a_service_without_home(tmp_path: Path) -> None:
    mpirun = fake_mpirun(tmp_path, "note(home=os.environ['HOME'])")
    mpirun.rename(f"{mpirun}.real")
    mpirun.write_text(NEEDS_HOME)
    mpirun.chmod(0o755)
    result = run(tmp_path, ["-np", "1", "true"], {"HOME": None})
    assert result.returncode == 0, result.stderr
    assert facts(tmp_path)["home"] == pwd.getpwuid(os.geteuid()).pw_dir
    assert run(tmp_path, ["-np", "1", "true"], {"HOME": "/elsewhere"}).returncode == 0
    assert facts(tmp_path)["home"] == "/elsewhere"


def test_an_mpirun_that_fails_is_not_called_another_one(tmp_path: Path) -> None:
    mpirun = fake_mpirun(tmp_path, "")
    mpirun.write_text("#!/bin/sh\necho 'no such library' >&2\nexit 3\n")
    result = run(tmp_path, ["-np", "1", "true"], {"PATH": "/usr/bin:/bin"}, built="Open MPI 5")
    assert result.returncode == 2
    assert f"{mpirun} (whose --version ends with status 3: no such library)" in result.stderr
    assert "of neither" not in result.stderr


@pytest.mark.parametrize("full", [True, False])
def test_an_mpirun_that_finds_no_room(tmp_path: Path, full: bool) -> None:
    fake_mpirun(tmp_path, "os.kill(os.getpid(), signal.SIGBUS)")
    change = "from hvd_tf._internal.launcher import directories\n"
    change += f"directories._FEW_BYTES = {1 << 62 if full else 0}\n"
    result = run(tmp_path, ["-np", "1", "true"], change=change)
    words = "hvdrun: signal 7 has ended mpirun"
    if full:
        words += f", as when {tmp_path / 'tmp'} has no room for files that mpirun maps "
        assert result.stderr.startswith(words), result.stderr
        assert "KB are free; set TMPDIR to a directory with more\n" in result.stderr
    else:
        assert result.stderr == f"{words}\n"
    assert result.returncode == 135 and left_of(tmp_path) == []


def test_closed_streams_are_none_of_the_files_of_ranks(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "run_ranks(2)")
    (tmp_path / "tmp").mkdir()
    said = "import os, sys; print('out', flush=True); print('err', file=sys.stderr)"
    command = [*launcher(tmp_path), "--output-filename", str(tmp_path / "of"), "-np", "2"]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command, sys.executable, "-c", said]
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    assert subprocess.run(shell, env=env, check=False).returncode == 0
    # The fake does not say whose a line is, so all are mpirun's own.
    written = {path.read_text() for path in (tmp_path / "of").glob("*/*")}
    assert written == {""}


def test_a_named_pipe_whose_writers_have_gone_is_an_input_at_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / STDIN).symlink_to(f"/proc/{os.getpid()}/fd/{pipe}")
    reads = (
        "import sys; from hvd_tf._internal.launcher import rank_main; rank_main.open_stdin(); "
        "print(repr(sys.stdin.read()))"
    )
    env = {**os.environ, "HVD_JOB_DIR": str(tmp_path), "OMPI_COMM_WORLD_RANK": "0"}
    command = [sys.executable, "-c", reads]
    result = subprocess.run(command, env=env, stdout=subprocess.PIPE, timeout=60, text=True)
    os.close(pipe)
    assert result.stdout == "''\n"


def test_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    source, sink = os.pipe()
    os.close(source)
    with start(tmp_path, ["--check-build"], stdout=sink) as process:
        os.close(sink)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + signal.SIGPIPE, b"")


def test_ctrl_c_before_the_job_begins(tmp_path: Path) -> None:
    fake_mpirun(tmp_path, "note()")
    change = """
from hvd_tf._internal.launcher import build_check
def stop(): raise KeyboardInterrupt
build_check.problem = stop
"""
    result = run(tmp_path, ["-np", "1", "true"], change=change)
    assert (result.returncode, result.stderr) == (128 + signal.SIGINT, "")
