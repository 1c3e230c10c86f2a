# SPDX-License-Identifier: Apache-2.0
"""Runs programs that import horovod, unchanged: `python -m hvd_tf.as_horovod train.py ...`.

    hvdrun -np 4 python -m hvd_tf.as_horovod train.py --epochs 3
    hvdrun -np 4 python -m hvd_tf.as_horovod -m package.train --epochs 3
    python -m hvd_tf.as_horovod horovodrun -np 4 python train.py --epochs 3

What the program starts finds hvd_tf in Horovod's place too, such as workers of multiprocessing.
`horovodrun` is hvdrun there, and here.

In Python it is `hvd_tf.install_as_horovod()`, before the first import of horovod.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from hvd_tf._internal import exit_status

_PACKAGE = Path(__file__).parent / "_internal" / "horovod"
# Where other processes find it.
_PATH = Path(__file__).resolve().parent / "_internal" / "horovod_path"
# Where they find horovodrun, and which Python that is to run.
_COMMANDS = _PATH.with_name("horovod_bin")
_LAUNCHER = _COMMANDS / "horovodrun"
_PYTHON_VARIABLE = "HVD_PYTHON"


def install_as_horovod() -> None:
    """Has `import horovod` and its modules for TensorFlow and Keras find hvd_tf.

    An installed Horovod stays as it is, and is not found by this process. Does nothing the second
    time.

    Raises:
      RuntimeError: this process has imported Horovod itself.
    """
    present = sys.modules.get("horovod")
    if present is not None:
        if getattr(present, "__file__", None) == str(_PACKAGE / "__init__.py"):
            return
        raise RuntimeError(
            f"horovod is imported already, from {getattr(present, '__file__', 'nowhere')}: call "
            "hvd_tf.install_as_horovod() before anything imports horovod"
        )
    spec = importlib.util.spec_from_file_location(
        "horovod", _PACKAGE / "__init__.py", submodule_search_locations=[str(_PACKAGE)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["horovod"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["horovod"]
        raise


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs a program as Python would, with hvd_tf in place of Horovod."""
    parser = argparse.ArgumentParser(
        prog="python -m hvd_tf.as_horovod",
        description="Runs a program that imports horovod, unchanged, with hvd_tf in its place.",
        usage="%(prog)s [-m module | file | command] [arguments of the program]",
    )
    rest = argparse.REMAINDER
    parser.add_argument("-m", dest="module", nargs=rest, help="run a module, as python -m does")
    parser.add_argument(
        "file", nargs=rest, help="run a file, or a command of a package's; then its arguments"
    )
    found = parser.parse_args(arguments)
    program = found.module or found.file
    if not program:
        parser.error("name a program: a file, or -m and a module")
    install_as_horovod()
    sys.argv = program
    _pass_on()
    if found.module:
        sys.path.insert(0, "")  # as python -m does
        with exit_status.noted():
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        return
    if program[0] == _LAUNCHER.name:
        os.execv(_LAUNCHER, [str(_LAUNCHER), *program[1:]])
    path = _file_of(program[0])
    if path is None:
        parser.error(f"there is no file {program[0]}, and no script of Python on PATH")
    program[0] = path
    sys.path.insert(0, str(Path(path).resolve().parent))
    with exit_status.noted():
        runpy.run_path(path, run_name="__main__")


def _file_of(program: str) -> Optional[str]:
    """The file itself, or the command that a package has installed by this name."""
    if Path(program).exists():
        return program
    command = None if os.sep in program else shutil.which(program)
    if command is None:
        return None
    with open(command, "rb") as file:
        first = file.readline(4096)
    return command if first.startswith(b"#!") and b"python" in first else None


def _pass_on() -> None:
    """Has processes that this one starts find hvd_tf in place of Horovod."""
    # multiprocessing's workers, which import the program again, take over this process's sys.path.
    sys.path.insert(0, str(_PATH))
    for variable, directory in (("PYTHONPATH", _PATH), ("PATH", _COMMANDS)):
        present = list(filter(None, [os.environ.get(variable)]))
        os.environ[variable] = os.pathsep.join([str(directory), *present])
    os.environ[_PYTHON_VARIABLE] = sys.executable


if __name__ == "__main__":
    main()
