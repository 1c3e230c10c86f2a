# SPDX-License-Identifier: Apache-2.0
"""Which NCCL a process gets. Of real libraries, which are small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[2] / "hvd_tf" / "_internal" / "nccl.py"

# What hvd_tf's library does after `load_nccl`: it asks the loader.
PROGRAM = """
import ctypes, runpy, sys
print(runpy.run_path(sys.argv[1])["load_nccl"]())
try:
    print(ctypes.CDLL("libnccl.so.2").ncclGetVersion())
except OSError as error:
    print("none")
"""


def library(folder: Path, version: int) -> Path:
    path = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    path.parent.mkdir(parents=True)
    source = folder / "nccl.c"
    source.write_text(f"int ncclGetVersion(void) {{ return {version}; }}\n")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-Wl,-soname,libnccl.so.2", source, "-o", path]
    subprocess.run(command, check=True)
    return path


def found(*folders: Path) -> list[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    env.pop("LD_LIBRARY_PATH", None)
    command = [sys.executable, "-c", PROGRAM, str(MODULE)]
    return subprocess.run(
        command, env=env, check=True, capture_output=True, text=True, timeout=60
    ).stdout.split()


def test_that_of_the_environment_is_found(tmp_path: Path) -> None:
    path = library(tmp_path, 123)
    assert found(tmp_path) == [str(path), "123"]


def test_the_first_folder_has_another_package_of_nvidia(tmp_path: Path) -> None:
    (tmp_path / "a" / "nvidia" / "cublas").mkdir(parents=True)
    path = library(tmp_path / "b", 7)
    assert found(tmp_path / "a", tmp_path / "b") == [str(path), "7"]


@pytest.mark.parametrize("text", [None, "no library"])
def test_there_is_none_that_can_be_loaded(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        path = library(tmp_path, 1)
        path.write_text(text)
    assert found(tmp_path) == ["None", "none"]
