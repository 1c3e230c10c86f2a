# SPDX-License-Identifier: Apache-2.0
"""Intel MPI opens its libfabric by name, and needs to be told where that is.

Intel's scripts for shells tell it, by variables. Without them, as with Intel's wheels, MPI_Init
would abort the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_MPI = "libmpi.so.12"
_FABRIC = "libfabric.so.1"
_PROVIDERS = "FI_PROVIDER_PATH"
# Of a wheel, of oneAPI since 2023 and before, and of libraries in a directory such as "release".
_PLACES = (".", "../opt/mpi/libfabric/lib", "../libfabric/lib", "../../libfabric/lib")


@contextlib.contextmanager
def findable(mapped: Iterable[str]) -> Iterator[None]:
    """Meanwhile Intel MPI finds its libfabric, if it would not by itself.

    Args:
      mapped: paths of the libraries of this process.
    """
    place = _place(mapped)
    is_told = place is not None and _PROVIDERS not in os.environ
    if place is not None:
        with contextlib.suppress(OSError):  # MPI says it better
            ctypes.CDLL(str(place / _FABRIC))  # from now on it is found by its name
    if is_told:
        separate = Path(str(place), "prov")
        os.environ[_PROVIDERS] = str(separate if separate.is_dir() else place)
    try:
        yield
    finally:
        if is_told:
            os.environ.pop(_PROVIDERS, None)


def _place(mapped: Iterable[str]) -> Path | None:
    """Where it is. None: MPI finds it, or is of another kind."""
    libraries = [Path(path) for path in mapped if Path(path).name.startswith(_MPI)]
    places = [library.parent / place for library in libraries for place in _PLACES]
    there = [place.resolve() for place in places if (place / _FABRIC).exists()]
    if not there:
        return None
    try:
        ctypes.CDLL(_FABRIC)
    except OSError:
        return there[0]
    return None
