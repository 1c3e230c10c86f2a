# SPDX-License-Identifier: Apache-2.0
"""Starts Open MPI 5 without a part that no rank needs, and that makes each start a second longer.

It is `btl/ofi`, for one-sided transfers by libfabric. Where no network suits it, it sleeps for a
second before it goes. hvd_tf sends messages, and for those by libfabric Open MPI has another part.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_VARIABLE = "OMPI_MCA_btl"
# By these users choose such parts, or name files of parameters that are not read here.
_CHOICES = (_VARIABLE, "OMPI_MCA_btl_ofi_mode", "OMPI_MCA_mca_base_param_files")
_FILE_CHOICE = re.compile(r"^\s*btl(_ofi_mode)?\s*=", re.MULTILINE)
# Open MPI 4 has number 40, and does not sleep.
_LIBRARY = re.compile(r"/libopen-pal\.so\.([0-9]+)(\.|$)")
_FIRST_NUMBER = 80
# Where distributions have their Open MPI's files.
_ETC = Path("/etc")
_PARAMETERS = ("openmpi-mca-params.conf", "openmpi-mca-params-override.conf")


@contextlib.contextmanager
def quick(mapped: Iterable[str]) -> Iterator[None]:
    """Meanwhile MPI starts without that part, unless the user chooses parts.

    Args:
      mapped: paths of the libraries of this process.
    """
    is_without = may_go_without(os.environ, mapped)
    if is_without:
        os.environ[_VARIABLE] = "^ofi"
    try:
        yield
    finally:
        if is_without:
            os.environ.pop(_VARIABLE, None)


def may_go_without(environ: Mapping[str, str], mapped: Iterable[str]) -> bool:
    """Whether MPI is Open MPI 5 or later, and nothing chooses parts.

    Args:
      environ: variables of this process. mpirun adds what its own options and files say.
      mapped: paths of the libraries of this process.
    """
    libraries = [
        path
        for path in mapped
        if (found := _LIBRARY.search(path)) and int(found[1]) >= _FIRST_NUMBER
    ]
    if not libraries or any(name in environ for name in _CHOICES):
        return False
    places = [Path(path).parents[1] / "etc" for path in libraries]
    if prefix := environ.get("OPAL_PREFIX"):
        places.append(Path(prefix, "etc"))
    places += _ETC.glob("openmpi*")
    files = [place / name for place in places for name in _PARAMETERS]
    if home := environ.get("HOME"):
        files.append(Path(home, ".openmpi", "mca-params.conf"))
    return not any(_FILE_CHOICE.search(_text(file)) for file in files)


def mapped_files() -> set[str]:
    """Paths of all files that this process has mapped, its libraries among them."""
    # The sixth field, where there is one. See proc_pid_maps(5).
    lines = _text(Path("/proc/self/maps")).splitlines()
    return {fields[5] for line in lines if len(fields := line.split(None, 5)) == 6}


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
