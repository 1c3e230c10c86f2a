# SPDX-License-Identifier: Apache-2.0
"""The file of a commit: private, whole, and read by its owner only."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pytest

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
    with pytest.raises((pickle.PicklingError, AttributeError)):
        file.write([bytes(1 << 20), lambda: None])
    assert file.read() == 1 and len(list(tmp_path.iterdir())) == 1


def test_a_file_of_others_is_not_read(tmp_path: Path) -> None:
    file = CommitFile(0, environ(tmp_path))
    file.write(1)
    (path,) = tmp_path.iterdir()
    path.chmod(0o644)
    with pytest.raises(ValueError, match="is not private to this user"):
        file.read()
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(ValueError, match="is not private to this user"):
            file.read()


def test_without_a_directory(tmp_path: Path) -> None:
    file = CommitFile(0, {})
    file.write(1)
    assert file.read() is None
    with pytest.raises(ValueError, match="HVD_ELASTIC_DIR=/no/such is no directory"):
        CommitFile(0, environ(Path("/no/such")))
