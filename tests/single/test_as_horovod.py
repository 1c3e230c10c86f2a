# SPDX-License-Identifier: Apache-2.0
"""python -m hvd_tf.as_horovod: runs files and modules as Python does. Needs no TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = """
import sys
import horovod
import beside
print(horovod.__version__, __name__, sys.argv, beside.HERE)
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hvd_tf.as_horovod", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "script.py").write_text(SHOWN)
    (folder / "beside.py").write_text("HERE = 'folder'")
    result = run(tmp_path, "folder/script.py", "--epochs", "3", "-m", "x")
    assert result.returncode == 0, result.stderr
    script = "['folder/script.py', '--epochs', '3', '-m', 'x']"
    assert result.stdout == f"0.28.1 __main__ {script} folder\n"
    # What is beside a link does not count.
    (tmp_path / "link.py").symlink_to("folder/script.py")
    result = run(tmp_path, "link.py")
    assert result.stdout == "0.28.1 __main__ ['link.py'] folder\n", result.stderr


def test_a_module(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(SHOWN)
    (tmp_path / "beside.py").write_text("HERE = 'top'")
    result = run(tmp_path, "-m", "package.train", "--epochs", "3")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"0.28.1 __main__ ['{package / 'train.py'}', '--epochs', '3'] top\n"


def test_the_status_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys; sys.exit(7)")
    assert run(tmp_path, "script.py").returncode == 7


# What the launcher is told, while peers may keep the rank from its end.
NOTED = """
import atexit, sys
from hvd_tf._internal import exit_status
atexit.register(lambda: print(exit_status.status()))
"""


@pytest.mark.parametrize(
    ("way", "noted"),
    [
        ("raise SystemExit(7)", 7),
        ("raise SystemExit('why')", 1),
        ("raise SystemExit", 0),
        ("from sys import exit; exit(7)", 7),
        ("try: raise SystemExit(7)\nexcept SystemExit: pass", 0),
    ],
)
def test_any_uncaught_system_exit_is_noted(tmp_path: Path, way: str, noted: int) -> None:
    (tmp_path / "script.py").write_text(NOTED + way)
    for arguments in (["script.py"], ["-m", "script"]):
        result = run(tmp_path, *arguments)
        assert (result.stdout, result.returncode) == (f"{noted}\n", noted), result.stderr


def test_an_import_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("raise ValueError")
    code = (
        "import pathlib, sys\n"
        "from hvd_tf import as_horovod\n"
        "as_horovod._PACKAGE = pathlib.Path(sys.argv[1])\n"
        "try: as_horovod.install_as_horovod()\n"
        "except ValueError: print('horovod' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "False\n", result.stderr


def test_what_cannot_be_run(tmp_path: Path) -> None:
    for arguments, words in [((), "name a program"), (("no.py",), "there is no file no.py")]:
        result = run(tmp_path, *arguments)
        assert result.returncode == 2 and words in result.stderr


def test_the_command_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "train-it"
    program.parent.mkdir()
    code = "import horovod, sys; print(horovod.__file__, sys.argv)"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    result = run(tmp_path, "train-it", "--steps", "3")
    assert result.returncode == 0, result.stderr
    assert "hvd_tf" in result.stdout and f"['{program}', '--steps', '3']" in result.stdout
    program.write_text("#!/bin/sh\nexit 0\n")
    assert "no script of Python on PATH" in run(tmp_path, "train-it").stderr


WORKERS = """
import multiprocessing
import subprocess
import sys
import horovod

def work():
    print("worker", horovod.__version__, horovod.__file__, flush=True)

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
    evaluate = "import horovod.common, sys; print('worker', horovod.__version__, horovod.__file__)"
    subprocess.run([sys.executable, "-c", evaluate], check=True)
    print(horovod.__file__)
"""


@pytest.mark.parametrize("program", [("train.py",), ("-m", "train")])
@pytest.mark.parametrize("path", [None, "elsewhere"])
def test_what_the_program_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: tuple[str, ...], path: str | None
) -> None:
    if path is not None:
        horovod = tmp_path / path / "horovod"
        horovod.mkdir(parents=True)
        (horovod / "__init__.py").write_text("__version__ = 'another'")
        monkeypatch.setenv("PYTHONPATH", str(horovod.parent), prepend=os.pathsep)
    (tmp_path / "train.py").write_text(WORKERS)
    result = run(tmp_path, *program)
    assert result.returncode == 0, result.stderr
    *workers, own = result.stdout.splitlines()
    assert workers == [f"worker 0.28.1 {own}"] * 3


def test_horovodrun_is_hvdrun_for_what_the_program_starts(tmp_path: Path) -> None:
    """As packages do that start their own workers."""
    start = "import subprocess; subprocess.run(['horovodrun', '-np', '3', '--dry-run', 'true'])"
    (tmp_path / "train.py").write_text(start)
    result = run(tmp_path, "train.py")
    assert result.returncode == 0, result.stderr
    assert "mpirun" in result.stdout and result.stdout.rstrip().endswith(" =true")


def test_horovodrun_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import horovod; print('ran', horovod.__version__)")
    result = run(tmp_path, "horovodrun", "-np", "2", sys.executable, "train.py")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["[0] ran 0.28.1", "[1] ran 0.28.1"]


def test_an_imported_horovod_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("WHOSE = 'another'")
    (tmp_path / "script.py").write_text("import horovod; print(horovod.__version__)")
    assert run(tmp_path, "script.py").stdout == "0.28.1\n"
    code = "import horovod, hvd_tf; hvd_tf.install_as_horovod()"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "RuntimeError: horovod is imported already, from" in result.stderr
    assert "before anything imports horovod" in result.stderr
