# SPDX-License-Identifier: Apache-2.0
"""_build/progress.py: what `make` shows of pip's output, and that a failure shows all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "_build" / "progress.py"


def shown(program: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a Python program that is run through the script."""
    command = [sys.executable, str(SCRIPT), sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, re.sub(r"(?m)^ +\d+ s  ", "", done.stdout), done.stderr


def test_large_downloads_and_the_installation_are_shown() -> None:
    said = """
Collecting tensorflow-cpu==2.15.1
  Downloading tensorflow_cpu-2.15.1-cp311-cp311-manylinux_2_17_x86_64.whl (207.2 MB)
  Downloading absl_py-2.3.1-py3-none-any.whl (135 kB)
  Downloading rich-14.0-py3-none-any.whl (1.2 MB)
  Using cached libclang-18.1.1-py2.py3-none-manylinux2010_x86_64.whl (24.5 MB)
Installing collected packages: libclang, absl-py, tensorflow-cpu
Successfully installed absl-py-2.3.1
Installing collected packages: hvd_tf
"""
    assert shown(f"print({said!r})") == (
        0,
        "downloading tensorflow_cpu, 207.2 MB\nusing cached libclang, 24.5 MB\n"
        "installing 3 packages\n",
        "",
    )


def test_a_compilation_takes_eleven_lines_at_most() -> None:
    for lines in ("f'  [{n}/68] Building CXX object a.cc.o'", "f'[{n*100//68:3}%] Building'"):
        status, text, _ = shown(f"for n in range(1, 69): print({lines})")
        assert status == 0 and 10 <= text.count("\n") <= 11
        assert text.startswith("compiling, 1 %\n") and text.endswith("compiling, 100 %\n")


def test_each_part_of_a_compilation_is_named() -> None:
    said = "== the engine\n[1/2] Building\n[2/2] Linking\n== operations\n[1/1] Building\n"
    lines = ("the engine, 50 %", "the engine, 100 %", "operations, 100 %")
    assert shown(f"print({said!r})") == (0, "".join(f"compiling {line}\n" for line in lines), "")


def test_a_build_that_waits_says_so() -> None:
    said = "== waiting for another build of this tree\n"
    assert shown(f"print({said!r})") == (0, "waiting for another build of this tree\n", "")


def test_lines_are_shown_as_they_come() -> None:
    """A command that waits for its line to have been shown would wait for ever otherwise."""
    program = "print('Installing collected packages: a, b', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert "installing 2 packages" in child.stdout.readline()
        child.communicate("\n", timeout=60)
    assert child.returncode == 0


def test_a_failure_shows_everything_and_keeps_its_status() -> None:
    status, text, error = shown("print('Collecting nothing'); raise SystemExit(3)")
    assert (status, text, error) == (3, "", "Collecting nothing\n")
