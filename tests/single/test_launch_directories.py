# SPDX-License-Identifier: Apache-2.0
"""A launcher's private directories: they outlast other launchers' starts, and not their own."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd_tf._internal.launcher import directories


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(directories, "_SHARED_MEMORY", tmp_path / "none")
    return tmp_path


def start_another() -> None:
    with directories.private_directories(1):
        pass


def test_it_goes_with_its_launcher(place: Path) -> None:
    with directories.private_directories(1) as made, directories.kept_directory() as kept:
        assert {made.job, kept} == set(place.iterdir())
        start_another()
        assert {made.job, kept} == set(place.iterdir())
    assert list(place.iterdir()) == []


def test_another_launcher_may_start_at_any_moment(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def surrounded(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal looks
            looks += 1
            with monkeypatch.context() as patch:
                for module, name, before in calls:
                    patch.setattr(module, name, before)
                start_another()
                try:
                    return call(*arguments, **options)
                finally:
                    start_another()

        return wrapped

    calls = [(os, "open", os.open), (os, "rename", os.rename), (fcntl, "flock", fcntl.flock)]
    with monkeypatch.context() as patch:
        for module, name, call in calls:
            patch.setattr(module, name, surrounded(call))
        with directories.kept_directory() as kept:
            assert kept.is_dir() and looks >= 2
            start_another()
            assert kept.is_dir()


@pytest.mark.parametrize(
    ("lock", "age_s", "stays"),
    [
        ("lock", 0.0, False),  # its launcher was killed
        (None, 0.0, True),  # its launcher has just made it
        (".lock", 0.0, True),
        (None, 100.0, False),
        (".lock", 100.0, False),
    ],
)
def test_what_a_killed_launcher_has_left_is_removed(
    place: Path, lock: str | None, age_s: float, stays: bool
) -> None:
    left = place / "hvdrun.leftover"
    left.mkdir()
    if lock is not None:
        (left / lock).touch()
    os.utime(left, (time.time() - age_s, time.time() - age_s))
    start_another()
    assert left.exists() == stays


def test_what_is_no_launchers_stays(place: Path) -> None:
    (place / "hvdrun.file").touch()
    (place / "hvdrun.link").symlink_to(place / "elsewhere")
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "lock").touch()
    start_another()
    assert {path.name for path in place.iterdir()} == {"hvdrun.file", "hvdrun.link", "elsewhere"}


@pytest.mark.parametrize("name", ["hvdrun.logs", "hvdrun.logs2026", "hvdrun.run-0001"])
def test_a_directory_of_the_users_stays(place: Path, name: str) -> None:
    """Whatever it is called, and however old it is."""
    own = place / name
    own.mkdir()
    (own / "rank.0").write_text("x")
    os.utime(own, (0, 0))
    start_another()
    assert (own / "rank.0").read_text() == "x"


@pytest.mark.parametrize(
    ("owner", "stays"),
    [
        ("another start\nanother name", True),
        ("{boot}\nanother name", False),  # a container's
        ("another start\n{name}", False),  # before this machine was started anew
    ],
)
def test_locks_of_other_machines_are_not_judged(place: Path, owner: str, stays: bool) -> None:
    """Some file systems have locks for each machine alone."""
    left = place / "hvdrun.leftover"
    left.mkdir()
    boot = directories._BOOT.read_text().strip()
    (left / "lock").write_text(owner.format(boot=boot, name=os.uname().nodename))
    start_another()
    assert left.exists() == stays
