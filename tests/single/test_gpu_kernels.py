# SPDX-License-Identifier: Apache-2.0
"""A CUDA compiler that cannot compile the kernels for GPUs is not used, and the build goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TF_OPS = Path(__file__).resolve().parents[2] / "tf_ops"

# What stands before the end of a script that says yes to everything.
ABLE = ""
BEFORE_HOPPER = """case "$*" in *compute_90*) echo "Unsupported architecture" >&2; exit 1;; esac"""
BEFORE_LARGE_PARAMETERS = """for file; do case "$file" in
*.cu) if grep -q __grid_constant__ "$file"; then echo "too large" >&2; exit 1; fi;; esac; done"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake here")
@pytest.mark.parametrize(
    ("refuses", "is_used"),
    [(ABLE, True), (BEFORE_HOPPER, False), (BEFORE_LARGE_PARAMETERS, False), (None, False)],
    ids=["able", "before-hopper", "before-large-parameters", "none"],
)
def test_a_compiler_is_tried(tmp_path: Path, refuses: str | None, is_used: bool) -> None:
    nvcc = tmp_path / "nvcc"
    if refuses is not None:
        nvcc.write_text(f"#!/bin/sh\n{refuses}\nexit 0\n")
        nvcc.chmod(0o755)
    command = ["cmake", "-S", TF_OPS, "-B", tmp_path / "build", "-DHVD_WITH_MPI=OFF"]
    command.append(f"-DHVD_NVCC={'' if refuses is None else nvcc}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    cache = (tmp_path / "build" / "CMakeCache.txt").read_text()
    assert f"HVD_HAS_GPU_KERNELS:INTERNAL={'ON' if is_used else 'OFF'}" in cache
    warns = refuses is not None and not is_used
    assert ("no kernels for GPUs" in done.stderr) == warns
    if warns:
        words = " ".join(done.stderr.split())
        assert "CUDA 12.1 or newer" in words
        assert "HVD_NVCC= builds without them" in words
