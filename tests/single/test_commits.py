# SPDX-License-Identifier: Apache-2.0
"""The file of a commit: private, whole, and read by its owner only."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hvd_tf._internal import commits
from hvd_tf._internal.commits import CommitFile


def environ(path: Path) -> dict[str, str]:
    return {"HVD_ELASTIC_DIR": str(path)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = CommitFile(0, environ(tmp_path))
    assert file.read() is None
    file.write({"step": 1})
    file.write({"step": 2})
    assert CommitFile(0, environ(tmp_path)).read() == {"step": 2}
    assert CommitFile(1, environ(tmp_path)).read() is None
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    file = CommitFile(0, environ(tmp_path))
    file.write(1)
    words = f"^a commit cannot be written to {re.escape(str(tmp_path))}, because .*<lambda>"
    with pytest.raises(ValueError, match=words):
        file.write([bytes(1 << 20), lambda: None])
    assert file.read() == 1 and len(list(tmp_path.iterdir())) == 1


def test_what_a_killed_rank_has_left_goes_with_the_next_commit(tmp_path: Path) -> None:
    killed = """
import os, signal
from hvd_tf._internal.commits import CommitFile

class Kill:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)

CommitFile(0, os.environ).write([bytes(1 << 20), Kill()])
"""
    for _ in range(2):
        env = {**os.environ, **environ(tmp_path)}
        ended = subprocess.run([sys.executable, "-c", killed], env=env, timeout=60)
        assert ended.returncode == -signal.SIGKILL
        assert len(list(tmp_path.iterdir())) == 1
    file = CommitFile(0, environ(tmp_path))
    assert file.read() is None
    file.write(1)
    assert file.read() == 1 and len(list(tmp_path.iterdir())) == 1


@contextmanager
def no_room(left: int = 4096) -> Iterator[None]:
    """No file may become longer. Python then gets an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_in_a_directory_that_hvdrun_has_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = CommitFile(0, {**environ(tmp_path), "HVD_ELASTIC_CHOSEN_DIR": str(tmp_path)})
    file.write(1)
    with no_room():
        file.write(bytes(1 << 20))
        words = f"hvd_tf.elastic: a commit cannot be written to {tmp_path} (File too large), "
        said = capsys.readouterr().err
        assert said.startswith(words) and "set HVD_ELASTIC_DIR to a directory" in said, said
        file.write(bytes(1 << 20))
        assert capsys.readouterr().err == ""
    assert file.read() == 1 and len(list(tmp_path.iterdir())) == 1
    file.write(2)
    assert file.read() == 2


def test_no_room_in_a_directory_of_the_users(tmp_path: Path) -> None:
    # That of an outer hvdrun does not count.
    file = CommitFile(0, {**environ(tmp_path), "HVD_ELASTIC_CHOSEN_DIR": "/elsewhere"})
    file.write(1)
    words = rf"^\[Errno 27\] a commit cannot be written to {re.escape(str(tmp_path))} \(File too "
    with no_room(), pytest.raises(OSError, match=f"{words}large\\): set HVD_ELASTIC_DIR to a dir"):
        file.write(bytes(1 << 20))
    assert file.read() == 1 and len(list(tmp_path.iterdir())) == 1


def test_no_room_for_the_mark_of_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {**environ(tmp_path), **FIRST, "HVD_ELASTIC_CHOSEN_DIR": str(tmp_path)}
    file = CommitFile(0, first)
    file.write(1)

    with no_room(0):
        file.finish()
    assert "the end of the training cannot be written to" in capsys.readouterr().err
    assert CommitFile(0, {**first, "HVD_RESTART": "1"}).read() == 1  # and does not train again


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o777])
def test_a_file_of_others_is_not_read(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(0o770)
    file = CommitFile(0, environ(tmp_path))
    file.write(1)
    (path,) = tmp_path.iterdir()
    path.chmod(mode)
    with pytest.raises(ValueError, match=f"is not private to this user: it .* mode 0{mode:o}"):
        file.read()
    path.chmod(mode & ~0o022)  # as the error says
    assert file.read() == 1
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(ValueError, match="is not private to this user"):
            file.read()


# As volumes of containers and of clouds show it.
@pytest.mark.parametrize(
    ("of_directory", "mode"), [(0o2700, 0o660), (0o700, 0o777), (0o2770, 0o640), (0o777, 0o644)]
)
def test_a_file_that_others_cannot_write_is_read(
    tmp_path: Path, of_directory: int, mode: int
) -> None:
    CommitFile(0, environ(tmp_path)).write(1)
    (path,) = tmp_path.iterdir()
    path.chmod(mode)
    tmp_path.chmod(of_directory)
    assert CommitFile(0, environ(tmp_path)).read() == 1


def test_a_volume_that_gives_files_to_others_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    make = tempfile.mkstemp

    def of_all(**arguments: Any) -> tuple[int, str]:
        descriptor, path = make(**arguments)
        os.fchmod(descriptor, 0o777)
        return descriptor, path

    monkeypatch.setattr(tempfile, "mkstemp", of_all)
    with pytest.raises(ValueError, match="mode 0777, so .*: name a directory of another volume"):
        CommitFile(0, environ(tmp_path)).write(1)
    assert list(tmp_path.iterdir()) == []


def test_another_program_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CommitFile(0, environ(tmp_path), ("a.py", "--x")).write(1)
    for other in (("b.py", "--x"), ("a.py",), ()):
        file = CommitFile(0, environ(tmp_path), other)
        assert file.read() is None
        assert "are of other programs, arguments or states" in capsys.readouterr().err
        file.write(2)
    assert CommitFile(0, environ(tmp_path), ("a.py", "--x")).read() == 1
    assert capsys.readouterr().err == ""
    assert CommitFile(1, environ(tmp_path), ("a.py", "--x")).read() is None
    assert capsys.readouterr().err == ""  # the first state of this number


FIRST = {"HVD_ELASTIC_JOB": "a", "HVD_RESTART": "0"}
SLURM = {"SLURM_JOB_ID": "7", "HVD_ELASTIC_JOB": "a", "HVD_RESTART": "3"}


# The start of the job in which it ended, and that of the one that comes later.
@pytest.mark.parametrize(
    ("ended", "later", "goes_on"),
    [
        (FIRST, {**FIRST, "HVD_RESTART": "1"}, True),
        ({**FIRST, "HVD_RESTART": "9"}, {**FIRST, "HVD_RESTART": "10"}, True),
        (FIRST, FIRST, False),
        ({**FIRST, "HVD_RESTART": "1"}, FIRST, False),
        (FIRST, {"HVD_ELASTIC_JOB": "b", "HVD_RESTART": "1"}, False),
        ({"HVD_RESTART": "0"}, {"HVD_RESTART": "1"}, False),
        ({}, {}, False),
        # Slurm starts hvdrun again, which is another one.
        (SLURM, {**FIRST, "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}, True),
        (SLURM, {**FIRST, "SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"}, False),
        ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}, True),
        ({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}, {"SLURM_JOB_ID": "7"}, False),
        (SLURM, {**SLURM, "HVD_RESTART": "4"}, True),
        # Another hvdrun of the same Slurm job.
        (SLURM, {**SLURM, "HVD_ELASTIC_JOB": "b", "HVD_RESTART": "4"}, False),
    ],
)
def test_a_training_that_has_come_to_its_end(
    tmp_path: Path,
    ended: dict[str, str],
    later: dict[str, str],
    goes_on: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = CommitFile(0, {**environ(tmp_path), **ended})
    file.write(1)
    file.finish()
    later_file = CommitFile(0, {**environ(tmp_path), **later})
    assert later_file.read() == (1 if goes_on else None)
    assert ("has come to its end" in capsys.readouterr().err) != goes_on
    later_file.write(2)
    assert CommitFile(0, {**environ(tmp_path), **later}).read() == 2


@pytest.mark.parametrize("mark", ["", "0", "[1", '["a"]', '["a", 3]'])
def test_a_mark_of_another_kind_is_one(tmp_path: Path, mark: str) -> None:
    CommitFile(0, environ(tmp_path)).write(1)
    (path,) = tmp_path.iterdir()
    Path(f"{path}.finished").write_text(mark)
    assert CommitFile(0, environ(tmp_path)).read() is None


def test_the_mark_follows_no_link(tmp_path: Path) -> None:
    """In a directory where others may put one."""
    (tmp_path / "mine").write_text("mine")
    file = CommitFile(0, environ(tmp_path))
    file.write(1)
    Path(f"{file.path}.finished").symlink_to(tmp_path / "mine")
    file.finish()
    assert (tmp_path / "mine").read_text() == "mine"
    assert CommitFile(0, environ(tmp_path)).read() is None


@pytest.mark.parametrize("content", [b"", b"\x80\x05no", b"cno_such_module\nName\n."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    file = CommitFile(0, environ(tmp_path))
    file.write(1)
    file.path.write_bytes(content)
    words = f"^{re.escape(str(file.path))} cannot be read .*: it was left .* begin anew"
    with pytest.raises(ValueError, match=words):
        CommitFile(0, environ(tmp_path)).read()


def test_two_jobs_in_one_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (CommitFile(0, environ(tmp_path)) for _ in range(2))
    one.write(1)
    one.write(2)
    other.write([3])  # of another size, as two may come within one tick of the file system
    assert capsys.readouterr().err == ""  # it may be a new start
    one.write(4)
    words = f"hvd_tf.elastic: another job has written {one.path} since this one's last commit, "
    assert capsys.readouterr().err.startswith(words)
    other.write([5])
    assert capsys.readouterr().err.startswith(words)
    one.write(6)
    assert capsys.readouterr().err == ""  # once
    assert one.read() == 6


def test_a_function_that_is_run_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_ELASTIC_PROGRAM", "f of g.py")
    assert commits.program() == ("f of g.py",)


def test_a_program_that_goes_elsewhere_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is a relative path where hvd_tf.as_horovod runs it."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
    before = commits.program()
    assert before[0] == os.path.realpath("train.py")
    directory = os.path.relpath(tmp_path)
    monkeypatch.chdir("/")
    assert commits.program() == before
    CommitFile(0, {"HVD_ELASTIC_DIR": directory}).write(1)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_training_without_commits_leaves_nothing_at_its_end(tmp_path: Path) -> None:
    CommitFile(0, environ(tmp_path)).finish()
    CommitFile(0, {}).finish()
    assert list(tmp_path.iterdir()) == []


def test_without_a_directory(tmp_path: Path) -> None:
    file = CommitFile(0, {})
    file.write(1)
    assert file.read() is None
    with pytest.raises(ValueError, match="HVD_ELASTIC_DIR=/no/such is no directory"):
        CommitFile(0, environ(Path("/no/such")))
