# SPDX-License-Identifier: Apache-2.0
"""Open MPI 5 starts without the part that sleeps for a second, unless the user chooses parts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_tf._internal import mpi_start
from hvd_tf._internal.build_stamp import BUILD_INFO

PLACES = ["home/.openmpi/mca-params.conf", "mpi/etc/openmpi-mca-params.conf"]
PLACES += ["mpi/etc/openmpi-mca-params-override.conf", "etc/openmpi/openmpi-mca-params.conf"]
# Files of the machine may choose parts, for another Open MPI too.
PROGRAM = """
import ctypes, pathlib, hvd_tf
from hvd_tf._internal import mpi_start
mpi_start._ETC = pathlib.Path("none")
hvd_tf.init()
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(hvd_tf.size(), getenv(b"OMPI_MCA_btl"))
hvd_tf.shutdown()
"""


@pytest.fixture(autouse=True)
def no_files_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mpi_start, "_ETC", tmp_path / "etc")


def goes_without(directory: Path, library: str = "libopen-pal.so.80.0.5", **environ: str) -> bool:
    """With a home and an MPI below the directory."""
    home = {"HOME": str(directory / "home"), **environ}
    mapped = ["/usr/lib/libc.so.6", str(directory / "mpi/lib" / library)]
    return mpi_start.may_go_without(home, mapped)


def test_open_mpi_5_and_later(tmp_path: Path) -> None:
    assert goes_without(tmp_path)
    assert goes_without(tmp_path, "libopen-pal.so.80")
    assert goes_without(tmp_path, "libopen-pal.so.90.1.0", OMPI_MCA_btl_tcp_links="2")


@pytest.mark.parametrize("library", ["libopen-pal.so.40.30.3", "libmpi.so.12.1.8"])
def test_others_do_not_sleep(tmp_path: Path, library: str) -> None:
    assert not goes_without(tmp_path, library)


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_btl", "OMPI_MCA_btl_ofi_mode", "OMPI_MCA_mca_base_param_files"]
)
def test_a_variable_that_chooses(tmp_path: Path, name: str) -> None:
    assert not goes_without(tmp_path, **{name: "self"})


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  btl = self,sm", False),
        ("btl_ofi_mode=2", False),
        ("# btl = self,sm", True),
        ("btl_tcp_links = 2", True),
    ],
)
def test_a_file_that_chooses(tmp_path: Path, place: str, line: str, expected: bool) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(f"osc = ^ucx\n{line}\n")
    assert goes_without(tmp_path) is expected


def test_a_prefix_has_files_too(tmp_path: Path) -> None:
    path = tmp_path / "moved/etc/openmpi-mca-params.conf"
    path.parent.mkdir(parents=True)
    path.write_text("btl = self,sm\n")
    assert not goes_without(tmp_path, OPAL_PREFIX=str(tmp_path / "moved"))


@pytest.mark.parametrize("chosen", [None, "self"])
def test_what_starts(tmp_path: Path, chosen: str | None) -> None:
    mpi = json.loads(BUILD_INFO.read_text())["mpi"]
    found = re.match(r"Open MPI (\d+)", mpi)
    if found is None or int(found[1]) < 5:
        pytest.skip(f"{mpi} has no such part, or one that does not sleep")
    # The caller may choose parts, or be a rank of another job.
    others = ("OMPI_", "PMI", "PRTE_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    env |= {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "OMPI_MCA_btl_base_verbose": "20"}
    if chosen:
        env["OMPI_MCA_btl"] = chosen
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    # What the program's children get is the user's.
    assert result.stdout.decode().split() == ["1", str(chosen and chosen.encode())]
    opened = set(re.findall(rb"components_open: component (\w+) open", result.stderr))
    # An Open MPI may have been built without ofi: a choice is told by all the others.
    assert opened == {b"self"} if chosen else b"self" in opened and b"ofi" not in opened
