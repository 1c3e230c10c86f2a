# SPDX-License-Identifier: Apache-2.0
"""hvdrun --check-build: what it says, what it costs, and what when hvd_tf does not work here."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launching import fake_mpirun, run
from mpi import PACKAGE

from hvd_tf._internal import build_stamp
from hvd_tf._internal.launcher import build_check

INFO = PACKAGE / "_build_info.json"
# hvdrun notes at its end which programs it has started and which modules it has imported.
NOTE_COSTS = """
import atexit, json, sys
programs = []
def see(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn"):
        # From Python 3.13 on Popen itself calls posix_spawn: one program, and two events.
        if event == "subprocess.Popen" or [arguments[1]] != programs[-1:]:
            programs.append(arguments[1])
    elif event in ("os.fork", "os.system", "os.exec"):
        programs.append(event)
def note():
    with open({file!r}, "w") as file:
        json.dump({{"programs": programs, "modules": list(sys.modules)}}, file)
sys.addaudithook(see)
atexit.register(note)
"""


@pytest.fixture
def built(tmp_path: Path) -> dict[str, object]:
    if not INFO.is_file():
        pytest.skip("hvd_tf is not built in this tree")
    fake_mpirun(tmp_path, "note()")
    info: dict[str, object] = json.loads(INFO.read_text())
    return info


def test_the_version_is_that_of_the_build(tmp_path: Path, built: dict[str, object]) -> None:
    """And not what pip knows of the tree, which is of the last build for any TensorFlow."""
    assert run(tmp_path, ["--version"]).stdout == f"hvdrun {built['hvd_tf']}\n"


def test_as_json(tmp_path: Path, built: dict[str, object]) -> None:
    result = run(tmp_path, ["--check-build", "--json"])
    found = json.loads(result.stdout)
    assert found["hvd_tf"] == built["hvd_tf"]
    assert found["tensorflow"]["distribution"] == built["tensorflow_distribution"]
    assert found["tensorflow"]["built_for"] == built["tensorflow_version"]
    assert found["mpi"] == built["mpi"]
    assert found["compiler"] == built["compiler"]
    assert found["mpirun"]["path"] == str(tmp_path / "bin" / "mpirun")
    assert (result.returncode == 0) == (found["problem"] is None)
    assert not (tmp_path / "facts").exists()


@pytest.mark.parametrize("option", ["--check-build", "-cb"])
def test_for_people(tmp_path: Path, built: dict[str, object], option: str) -> None:
    result = run(tmp_path, [option])
    assert result.stdout.startswith(f"hvd_tf {built['hvd_tf']}, Python ")
    assert f"[X] MPI: {built['mpi']}\n" in result.stdout
    kernels = "[X] GPU kernels\n" if built["with_gpu_kernels"] else "[ ] GPU kernels: there was no"
    assert kernels in result.stdout


def test_the_gpu_lane_and_nccl(tmp_path: Path, built: dict[str, object]) -> None:
    """Every build has them, so what counts is what is on the machine."""
    environ = {"PYTHONPATH": str(tmp_path / "site"), "LD_LIBRARY_PATH": str(tmp_path / "driver")}
    found = json.loads(run(tmp_path, ["--check-build", "--json"], environ).stdout)
    text = run(tmp_path, ["--check-build"], environ).stdout
    if found["cuda_driver"] is None:
        assert "[ ] GPU lane: no libcuda.so.1 here, which NVIDIA's driver brings\n" in text
    if found["nccl"] is None:
        assert "[ ] NCCL: no libnccl.so.2 here; pip install nvidia-nccl-cu12\n" in text
    library(tmp_path / "driver" / "libcuda.so.1")
    nccl = tmp_path / "site" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library(nccl)
    found = json.loads(run(tmp_path, ["--check-build", "--json"], environ).stdout)
    assert (found["cuda_driver"], found["nccl"]) == ("libcuda.so.1", str(nccl))
    text = run(tmp_path, ["--check-build"], environ).stdout
    assert f"[X] GPU lane: libcuda.so.1\n[X] NCCL: {nccl}\n" in text
    nccl.write_text("no library")
    found = json.loads(run(tmp_path, ["--check-build", "--json"], environ).stdout)
    assert found["nccl"] in (None, "libnccl.so.2") and str(nccl) in found["nccl_error"]
    text = run(tmp_path, ["--check-build"], environ).stdout
    if found["nccl"] is None:
        assert f"[ ] NCCL: {found['nccl_error']}\n" in text


def library(path: Path) -> None:
    path.parent.mkdir(parents=True)
    source = path.with_suffix(".c")
    source.write_text("int nothing;\n")
    command = [os.environ.get("CC", "cc"), "-shared", f"-Wl,-soname,{path.name}", source]
    subprocess.run([*command, "-o", path], check=True)


def test_without_an_mpirun(tmp_path: Path, built: dict[str, object]) -> None:
    empty = tmp_path / "nowhere"
    result = run(tmp_path, ["--check-build"], {"PATH": str(empty)}, prefix=empty)
    assert result.returncode == 1
    assert "[ ] mpirun: no\n" in result.stdout
    assert "It does not work here: no mpirun beside" in result.stdout


@pytest.mark.parametrize("missing", ["_*.so", "_*.json"])
@pytest.mark.parametrize("start", ["-m hvd_tf.launch", "hvdrun"])
def test_a_library_that_is_not_there(tmp_path: Path, start: str, missing: str) -> None:
    # Nor its bytecode, which a process beside this one may be writing.
    left_out = shutil.ignore_patterns(missing, "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "hvd_tf", ignore=left_out)
    script = tmp_path / "hvdrun"  # as pip writes it
    script.write_text("import sys\nfrom hvd_tf.launch import main\nsys.exit(main())\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def hvdrun(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *start.split(), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )

    result = hvdrun("--check-build")
    assert result.returncode == 1, result.stderr
    assert "It does not work here: hvd_tf was not compiled: _native.so" in result.stdout
    result = hvdrun("-np", "1", "true")
    assert result.returncode == 2
    assert result.stderr.startswith("hvdrun: hvd_tf was not compiled: _native.so")
    (tmp_path / "setup.py").touch()  # as in the sources, beside which pip has installed it
    command = [sys.executable, "-c", "import hvd_tf"]
    program = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert program.returncode == 1
    said = program.stderr.splitlines()[-1]
    assert said.startswith("ImportError: hvd_tf was not compiled: _native.so or _build_info.json")
    assert said.endswith(f"If it is installed, start Python outside of {tmp_path}.")


def test_without_a_tensorflow(monkeypatch: pytest.MonkeyPatch, built: dict[str, object]) -> None:
    monkeypatch.setattr(build_stamp, "check_build", lambda: None)  # another distribution may do
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wanted = f"{built['tensorflow_distribution']}=={built['tensorflow_version']}"
    assert build_check.problem() == f"there is no TensorFlow in {sys.prefix}: pip install {wanted}"


def fake_tensorflow(site: Path, versions: dict[str, str], last: str) -> None:
    """Distributions that write into one folder `tensorflow`, where `last` was installed last."""
    (site / "tensorflow").mkdir(parents=True)
    (site / "tensorflow" / "__init__.py").touch()
    library = "tensorflow/libtensorflow_framework.so.2"
    for name, version in versions.items():
        facts = site / f"{name.replace('-', '_')}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        (facts / "RECORD").write_text(f"tensorflow/__init__.py,,\n{library},sha256=x,{len(name)}\n")
    (site / library).write_bytes(bytes(len(last)))


def test_another_distribution_of_another_version(tmp_path: Path, built: dict[str, object]) -> None:
    site = tmp_path / "site"
    fake_tensorflow(site, {"intel-tensorflow": "2.99.0"}, "intel-tensorflow")
    environ = {"PYTHONPATH": str(site)}
    result = run(tmp_path, ["--check-build"], environ)
    built_for = f"{built['tensorflow_distribution']} {built['tensorflow_version']}"
    line = f"[ ] TensorFlow: built for {built_for}, installed: intel-tensorflow 2.99.0\n"
    assert line in result.stdout and result.returncode == 1, result.stdout
    why = (
        f"hvd_tf was compiled for {built_for}, but intel-tensorflow 2.99.0 is installed. Rebuild "
        f"it for that one: `{build_stamp.REBUILD} .` in its source directory, or install "
        f"intel-tensorflow=={built['tensorflow_version']}."
    )
    assert f"It does not work here: {why}\n" in result.stdout
    found = json.loads(run(tmp_path, ["--check-build", "--json"], environ).stdout)
    assert found["tensorflow"]["installed"] == "2.99.0"
    assert found["tensorflow"]["installed_distribution"] == "intel-tensorflow"
    result = run(tmp_path, ["-np", "1", "true"], environ)
    assert (result.returncode, result.stderr) == (2, f"hvdrun: {why}\n")


@pytest.mark.parametrize("also", ["", "+nv24.3", ".600", ".post1"])
def test_another_distribution_of_the_same_version(
    tmp_path: Path, built: dict[str, object], also: str
) -> None:
    site, version = tmp_path / "site", f"{built['tensorflow_version']}{also}"
    fake_tensorflow(site, {"tensorflow-of-mine": version}, "tensorflow-of-mine")
    result = run(tmp_path, ["--check-build"], {"PYTHONPATH": str(site)})
    assert f"installed: tensorflow-of-mine {version}\n[X] MPI" in result.stdout
    assert "\n[X] TensorFlow: " in result.stdout and result.returncode == 0, result.stdout


@pytest.mark.parametrize("last_is_ours", [True, False])
def test_of_two_distributions_in_one_folder_the_last_counts(
    tmp_path: Path, built: dict[str, object], last_is_ours: bool
) -> None:
    site = tmp_path / "site"
    ours = str(built["tensorflow_distribution"])
    versions = {ours: str(built["tensorflow_version"]), "tensorflow-intel": "2.99.0"}
    fake_tensorflow(site, versions, ours if last_is_ours else "tensorflow-intel")
    result = run(tmp_path, ["--check-build"], {"PYTHONPATH": str(site)})
    assert (result.returncode == 0) == last_is_ours, result.stdout
    assert ("but tensorflow-intel 2.99.0 is installed" in result.stdout) != last_is_ours


def test_ours_in_another_version(tmp_path: Path, built: dict[str, object]) -> None:
    site, ours = tmp_path / "site", str(built["tensorflow_distribution"])
    fake_tensorflow(site, {ours: "2.99.0"}, ours)
    result = run(tmp_path, ["--check-build"], {"PYTHONPATH": str(site)})
    assert result.returncode == 1
    assert "[ ] TensorFlow: " in result.stdout and "installed: 2.99.0\n" in result.stdout


def test_a_tensorflow_of_no_distribution(tmp_path: Path, built: dict[str, object]) -> None:
    """As where it is found in a source tree: `init` judges."""
    site = tmp_path / "site"
    fake_tensorflow(site, {}, "")
    result = run(tmp_path, ["--check-build"], {"PYTHONPATH": str(site)})
    assert "installed: " in result.stdout and result.returncode in (0, 1)


def test_it_costs_next_to_nothing(tmp_path: Path, built: dict[str, object]) -> None:
    file = tmp_path / "costs"
    run(tmp_path, ["--check-build", "--json"], change=NOTE_COSTS.format(file=str(file)))
    costs = json.loads(file.read_text())
    assert costs["programs"] == [[str(tmp_path / "bin" / "mpirun"), "--version"]]
    assert not {"tensorflow", "numpy"} & set(costs["modules"])


def test_json_is_of_check_build(tmp_path: Path) -> None:
    result = run(tmp_path, ["--json", "-np", "1", "true"])
    assert result.returncode == 2 and "--check-build" in result.stderr
