# SPDX-License-Identifier: Apache-2.0
"""The status that a program asks for by sys.exit."""

from __future__ import annotations

import subprocess
import sys

import pytest
from mpi import ROOT

PROGRAM = """
import sys, threading, types
package = types.ModuleType("hvd_tf")
package.__path__ = [sys.argv[1]]
sys.modules["hvd_tf"] = package
from hvd_tf._internal import exit_status
import atexit
atexit.register(lambda: print(exit_status.status()))
exit_status.watch()
thread = threading.Thread(target=sys.exit, args=(7,))
thread.start()
thread.join()
exec(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("way", "noted", "returned"),
    [
        ("sys.exit(3)", 3, 3),
        ("sys.exit(259)", 3, 3),
        ("sys.exit('why')", 1, 1),
        ("exit(3)", 3, 3),
        ("quit(4)", 4, 4),
        ("exit()", 0, 0),
        ("sys.exit()", 0, 0),
        ("sys.exit(None)", 0, 0),
        ("sys.exit(True)", 1, 1),
        ("pass", 0, 0),
        ("threading.Timer(0.2, sys.exit, (7,)).start(); sys.exit(3)", 3, 3),
        # One that the program catches is noted, too. Nothing tells it from one that ends it.
        ("try: sys.exit(2)\nexcept SystemExit: pass", 2, 0),
        ("try: sys.exit(2)\nexcept SystemExit: sys.exit(3)", 3, 3),
        ("try: sys.exit(2)\nfinally: pass", 2, 2),
        ("try: sys.exit(2)\nexcept SystemExit: raise", 2, 2),
    ],
)
def test_what_is_noted(way: str, noted: int, returned: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "hvd_tf"), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == (f"{noted}\n", returned), done.stderr
