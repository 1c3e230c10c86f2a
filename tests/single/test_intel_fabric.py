# SPDX-License-Identifier: Apache-2.0
"""Intel MPI finds its libfabric where no script for the shell has told it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hvd_tf._internal.intel_fabric import findable

# Loads it as libmpi does, and shows where its providers are looked for.
PROGRAM = """
import ctypes, os, sys
from hvd_tf._internal.intel_fabric import findable
with findable({mapped!r}):
    ctypes.CDLL("libfabric.so.1")
    print(os.environ.get("FI_PROVIDER_PATH"))
print(os.environ.get("FI_PROVIDER_PATH"))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of its name. Skips the test where the machine has one, which is found first."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libfabric.so.1")
        pytest.skip("this machine has a libfabric")
    path = tmp_path_factory.mktemp("made") / "libfabric.so.1"
    command = ["gcc", "-shared", "-nostdlib", "-Wl,-soname,libfabric.so.1", "-o", str(path)]
    subprocess.run([*command, "-x", "c", os.devnull], check=True)
    return path


@pytest.fixture
def installed(tmp_path: Path, library: Path) -> Callable[[str, str], str]:
    """Puts libfabric and libmpi to these places. Returns the path of libmpi."""

    def install(fabric: str, mpi: str) -> str:
        for place in (fabric, mpi):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / fabric / "libfabric.so.1").write_bytes(library.read_bytes())
        return str(tmp_path / mpi / "libmpi.so.12.0.0")

    return install


def shown(mapped: list[str], **environ: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM.format(mapped=mapped)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environ}
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(
    ("fabric", "mpi"),
    [
        ("lib", "lib"),
        ("opt/mpi/libfabric/lib", "lib"),
        ("libfabric/lib", "lib"),
        ("libfabric/lib", "lib/release"),
    ],
)
@pytest.mark.parametrize("providers", ["", "prov"])
def test_it_is_found_beside_libmpi(
    tmp_path: Path, installed: Callable[[str, str], str], fabric: str, mpi: str, providers: str
) -> None:
    path = installed(fabric, mpi)
    place = tmp_path / fabric / providers
    place.mkdir(exist_ok=True)
    assert shown(["/usr/lib/libc.so.6", path]) == [str(place), "None"]


def test_the_user_s_providers_stay(installed: Callable[[str, str], str]) -> None:
    assert shown([installed("lib", "lib")], FI_PROVIDER_PATH="/mine") == ["/mine", "/mine"]


def test_one_that_is_found_by_its_name_stays(
    tmp_path: Path, installed: Callable[[str, str], str]
) -> None:
    path = installed("lib", "lib")
    assert shown([path], LD_LIBRARY_PATH=str(tmp_path / "lib")) == ["None", "None"]


@pytest.mark.parametrize("name", ["libmpi.so.40.1", "libopen-pal.so.80"])
def test_other_mpis_are_left_alone(installed: Callable[[str, str], str], name: str) -> None:
    path = Path(installed("lib", "lib")).with_name(name)
    before = dict(os.environ)
    with findable([str(path)]):
        assert dict(os.environ) == before
