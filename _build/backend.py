# SPDX-License-Identifier: Apache-2.0
"""PEP 517 and 660 backend: setuptools, plus build requirements that depend on what is here."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import environment
import requirements

# Frontends look all hooks up in this module; those not defined below are setuptools' own.
from setuptools import build_meta as _setuptools
from setuptools.build_meta import (  # noqa: F401
    build_editable,
    build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The TensorFlow, MPI and tools that are not here yet."""
    found = environment.plan()
    return requirements.build_requirements(found.tensorflow, found.wrapper)


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Nothing: an sdist is for any TensorFlow, so making one needs none."""
    return []


def build_wheel(
    wheel_directory: str,
    config_settings: Mapping[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Builds the wheel, from scratch but for the C++ objects."""
    # setuptools packs whatever lies there, modules that were deleted since included.
    shutil.rmtree(environment.SETUPTOOLS_BUILD, ignore_errors=True)
    return _setuptools.build_wheel(wheel_directory, config_settings, metadata_directory)
