# SPDX-License-Identifier: Apache-2.0
"""Ranks of different builds are refused by `init`, in one sentence on every rank."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

from mpi import ROOT, run_ranks

PROGRAM = """
    import os, sys
    if "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
        sys.path.insert(0, {other!r})
    import hvd_tf as hvd
    try:
        hvd.init()
    except ValueError as error:
        print("refused:", error, flush=True)
"""


def test_two_builds(tmp_path: Path) -> None:
    other = tmp_path / "other"
    # A process beside this one may be writing bytecode there.
    bytecode = shutil.ignore_patterns("__pycache__")
    shutil.copytree(installed(), other / "hvd_tf", ignore=bytecode)
    library = other / "hvd_tf" / "_native.so"
    code = library.read_bytes()
    (stamp,) = set(re.findall(rb"build-[0-9a-f]{16}", code))
    # Its last characters may be some other short text's too: the linker lets them share.
    changed = b"build-" + b"0" * 8 + stamp[-8:]
    library.write_bytes(code.replace(stamp, changed))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).format(other=str(other)))
    result = run_ranks(program, 3)
    told = f"refused: hvd_tf is {stamp.decode()} on rank 0 and {changed.decode()} on rank 1; give"
    assert not result.timed_out and not result.leftovers, result.text
    for output in result.outputs:
        assert told in output, result.text


def installed() -> Path:
    """Where the ranks find hvd_tf."""
    from importlib import util

    spec = util.find_spec("hvd_tf")
    assert spec is not None and spec.origin is not None, ROOT
    return Path(spec.origin).parent
