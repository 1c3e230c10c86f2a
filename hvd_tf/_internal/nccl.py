# SPDX-License-Identifier: Apache-2.0
"""Finds the NCCL of the Python environment, which no loader's path has."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

__all__ = ["can_load", "find_nccl", "load_nccl", "why_not_loaded"]

_LIBRARY = "libnccl.so.2"


def load_nccl() -> Optional[str]:
    """Loads libnccl.so.2 of the packages nvidia-nccl-cu12 or -cu13, as TensorFlow's extra has it.

    From here on whoever asks the loader for that library gets this one. What cannot be loaded is
    left to them, who will say why.

    Returns:
      Its path. None: there is none, or it cannot be loaded.
    """
    for path in _of_packages():
        if can_load(path):
            return path
    return None


def find_nccl() -> Optional[str]:
    """What `load_nccl` loads, or else the loader's own. None: there is no NCCL that works here."""
    return load_nccl() or (_LIBRARY if can_load(_LIBRARY) else None)


def why_not_loaded() -> Optional[str]:
    """The loader's words about the first NCCL of a package. None: it loads, or there is none."""
    for path in _of_packages():
        return _error_of(path)
    return None


def can_load(library: str) -> bool:
    """Whether the loader finds it, which has loaded it then."""
    return _error_of(library) is None


def _error_of(library: str) -> Optional[str]:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)
    return None


def _of_packages() -> Iterator[str]:
    for folder in _folders_of_nvidia():
        path = folder / "nccl" / "lib" / _LIBRARY
        if path.is_file():
            yield str(path)


def _folders_of_nvidia() -> list[Path]:
    """The package `nvidia` has a part in each folder of packages, and no file of its own."""
    PathFinder.invalidate_caches()
    spec = find_spec("nvidia")
    return [Path(place) for place in spec.submodule_search_locations or []] if spec else []
