# SPDX-License-Identifier: Apache-2.0
"""Checks that the TensorFlow that the library was compiled for is the one that is installed.

If the library is loaded into another TensorFlow, it fails with a list of undefined symbols.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Optional

DIRECTORY = Path(__file__).absolute().parents[1]
LIBRARY = DIRECTORY / "_native.so"
BUILD_INFO = DIRECTORY / "_build_info.json"
REBUILD = "pip install --force-reinstall --no-deps --no-cache-dir"


def check_build(running_version: Optional[str] = None) -> None:
    """Compare the build stamp with the TensorFlow of that version, as it says itself.

    Without a version, it takes that of the installed distribution that the library was compiled
    for. That needs no import of TensorFlow. If another distribution is installed, the import
    decides.

    Raises ImportError if the library is missing, or was compiled for another TensorFlow.
    """
    if not (LIBRARY.is_file() and BUILD_INFO.is_file()):
        is_source = (DIRECTORY.parent / "setup.py").is_file()
        raise ImportError(
            f"hvd_tf was not compiled: {LIBRARY.name} or {BUILD_INFO.name} is missing from "
            f"{DIRECTORY}. Run `pip install -e .` (or `pip install .`) in its source directory."
            + (f" If it is installed, start Python outside of {DIRECTORY.parent}." * is_source)
        )
    info = json.loads(BUILD_INFO.read_text())
    distribution, version = info["tensorflow_distribution"], info["tensorflow_version"]
    if running_version is None:
        try:
            running_version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return
        is_same = version == running_version
    else:
        is_same = is_version_of(version, running_version)
    if not is_same:
        built_for, there = f"{distribution} {version}", f"TensorFlow {running_version}"
        raise ImportError(does_not_fit(built_for, there, f"{distribution}=={version}"))


def does_not_fit(built_for: str, installed: str, wanted: str) -> str:
    """That the library was compiled for another TensorFlow. `wanted`: one that pip may install."""
    return (
        f"hvd_tf was compiled for {built_for}, but {installed} is installed. Rebuild it for that "
        f"one: `{REBUILD} .` in its source directory, or install {wanted}."
    )


def is_version_of(distributed: str, running: str) -> bool:
    """Whether a distribution of one version can be a TensorFlow that says it has the other.

    They write it in two ways. TensorFlow itself says 2.22.0-dev20260101 and 2.16.0-rc1, and leaves
    out what a vendor adds, as in 2.15.0+nv24.3 and 2.14.0.600, and that a wheel was made again, as
    in 2.15.0.post1.
    """
    plain = re.sub(r"-(rc\d+)", r"\1", running.replace("-dev", ".dev"))
    same = re.escape(plain.partition("+")[0]) + r"(\.\d+)*(\.post\d+)?(\+.*)?"
    return distributed == running or bool(re.fullmatch(same, distributed))


def is_launcher() -> bool:
    """Whether this process is hvdrun, or another `python -m hvd_tf.*`, and starting."""
    program = Path((getattr(sys, "argv", None) or [""])[0]).name
    return program in ("hvdrun", "-m")  # sys.argv[0] before Python has found the module
