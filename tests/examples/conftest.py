# SPDX-License-Identifier: Apache-2.0
"""The prepared flights, once for all tests of the examples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mpi import ROOT

PREPARE = "import sys, pathlib, data; data.load(pathlib.Path(sys.argv[1]))"


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the flights programs, so that no run of a test takes the time."""
    folder = tmp_path_factory.mktemp("flights")
    command = [sys.executable, "-c", PREPARE, str(folder)]
    subprocess.run(command, cwd=ROOT / "estimator_examples" / "flights", check=True)
    return folder
