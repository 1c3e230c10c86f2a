# SPDX-License-Identifier: Apache-2.0
"""Numbers are read and written with a decimal point under a locale that has decimal commas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOCALE = """comment_char %
escape_char /
LC_NUMERIC
decimal_point "<U002C>"
thousands_sep ""
grouping -1
END LC_NUMERIC
"""

PROGRAM = """
import ctypes, locale
locale.setlocale(locale.LC_NUMERIC, "comma")
strtod = ctypes.CDLL(None).strtod
strtod.restype = ctypes.c_double
assert strtod(b"0,5", None) == 0.5 and strtod(b"0.5", None) == 0  # so it is one
import hvd_tf as hvd
hvd.init()
print(hvd.allreduce(8.0, prescale_factor=0.5).numpy())
"""


@pytest.fixture(scope="module")
def comma_locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a locale "comma": a machine need not have any such."""
    directory = tmp_path_factory.mktemp("locales")
    (directory / "source").write_text(LOCALE)
    command = ["localedef", "--no-archive", "-c", "-i", "source", "./comma"]
    # It warns of the categories that are missing.
    subprocess.run(command, cwd=directory, capture_output=True, check=False, timeout=60)
    assert (directory / "comma" / "LC_NUMERIC").is_file()
    return directory


@pytest.mark.parametrize("seconds", ["0.5", "0,5"])
def test_seconds_with_a_point(comma_locales: Path, seconds: str) -> None:
    env = {**os.environ, "LOCPATH": str(comma_locales), "HVD_STALL_WARNING_S": seconds}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if seconds == "0.5":
        assert done.returncode == 0 and done.stdout == "4.0\n", done.stderr
    else:
        assert "ValueError: HVD_STALL_WARNING_S='0,5'" in done.stderr, done.stderr
