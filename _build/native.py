# SPDX-License-Identifier: Apache-2.0
"""Compiles tf_ops/ into `_native.so` with CMake, and writes what it was compiled for."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import build_tools
import environment

ROOT = Path(__file__).resolve().parent.parent
_SOURCE = ROOT / "tf_ops"
# Core and transports, which are the same for every TensorFlow, and the tests of the core.
ENGINE = ROOT / "build" / "core"


def install(plan: environment.Plan, version: str, destination: Path, in_place: bool) -> None:
    """Puts `_native.so` and `_build_info.json` into `destination`, compiling what changed."""
    build = build_directory(plan)
    with alone():
        print("== core and transports", flush=True)
        _build(ENGINE, engine_arguments(plan), "hvd_transport")
        print(f"== operations for TensorFlow {plan.tensorflow.package.version}", flush=True)
        _build(build, cmake_arguments(plan, build, in_place), "hvd_native")
        destination.mkdir(parents=True, exist_ok=True)
        _replace(build / "_native.so", destination / "_native.so")
        facts = build_info(plan, version, compiler_of(build), has_gpu_kernels(build))
        info = json.dumps(facts, indent=2) + "\n"
        (destination / "_build_info.json").write_text(info)


@contextmanager
def alone() -> Iterator[None]:
    """Waits for the end of another build of this tree: two would spoil each other's files."""
    ENGINE.parent.mkdir(exist_ok=True)
    with (ENGINE.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("== waiting for another build of this tree", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(build: Path, configure: list[str], target: str) -> None:
    forget_foreign_cache(build)
    _run(["cmake", *configure])
    command = ["cmake", "--build", str(build), "--target", target]
    if "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:  # CMake reads that itself
        command += ["--parallel", str(len(os.sched_getaffinity(0)))]
    _run(command)


def build_directory(plan: environment.Plan) -> Path:
    """One for each TensorFlow and MPI, so that changing between them compiles nothing again."""
    assert plan.mpi is not None
    name = f"{plan.tensorflow.package.requirement}-{plan.mpi.flavour}"
    return ROOT / "build" / ("native-" + re.sub(r"[^a-z0-9.]+", "-", name.lower()))


def forget_foreign_cache(build: Path) -> None:
    """Deletes a build directory that CMake would refuse: copied along, or of another generator.

    Also one of another compiler, or of other flags for it: CMake would go on with these.
    """
    cache = _cache(build)
    if not cache:
        return
    same_tree = cache.get("CMAKE_HOME_DIRECTORY") == str(_SOURCE)
    same_tools = cache.get("CMAKE_GENERATOR") == _generator() and _has_wanted_compiler(cache)
    if not same_tree or not same_tools:
        shutil.rmtree(build)


def _has_wanted_compiler(cache: dict[str, str]) -> bool:
    """Whether the cache's compiler is there, and is what CXX and CXXFLAGS ask for."""
    compiler = Path(cache.get("CMAKE_CXX_COMPILER", os.devnull))
    if not compiler.exists():
        return False
    words = os.environ.get("CXX", "").split()
    asked = shutil.which(words[0]) if words else None
    if asked is not None and Path(asked).resolve() != compiler.resolve():
        return False
    return cache.get("CMAKE_CXX_FLAGS", "").split() == os.environ.get("CXXFLAGS", "").split()


def engine_arguments(plan: environment.Plan) -> list[str]:
    """The configure command's arguments; run each time, for tools and MPI move."""
    return _arguments(plan, ENGINE, {})


def cmake_arguments(plan: environment.Plan, build: Path, in_place: bool) -> list[str]:
    """The same for what is built on the engine, for one TensorFlow."""
    tensorflow, mpi = plan.tensorflow, plan.mpi
    assert tensorflow.root is not None and mpi is not None
    values = {
        "HVD_ENGINE": str(ENGINE),
        "HVD_WITH_TF": "ON",
        "HVD_TF_INCLUDE": str(tensorflow.root / "include"),
        "HVD_TF_LIB": str(tensorflow.root),
        "HVD_RPATH": ";".join(rpath(mpi, in_place)),
        "HVD_NVCC": nvcc(),
    }
    return _arguments(plan, build, values)


def _arguments(plan: environment.Plan, build: Path, more: dict[str, str]) -> list[str]:
    mpi = plan.mpi
    assert mpi is not None
    values = {
        "HVD_WITH_MPI": "ON",
        "HVD_MPI_INCLUDE": ";".join(mpi.include_dirs),
        "HVD_MPI_LIB": ";".join(mpi.library_dirs),
        "HVD_MPI_LIBRARY": mpi.library,
        # A compiler that we never saw may warn about something new; that must not stop a user.
        "HVD_WERROR": os.environ.get("HVD_WERROR", "OFF"),
        **more,
    }
    if ninja := shutil.which("ninja"):
        # Under build isolation the ninja of the last build is gone.
        if _generator() == "Ninja":
            values["CMAKE_MAKE_PROGRAM"] = ninja
    arguments = ["-S", str(_SOURCE), "-B", str(build), "-G", _generator()]
    return arguments + [f"-D{name}={value}" for name, value in values.items()]


def rpath(mpi: environment.Mpi, in_place: bool) -> list[str]:
    """Where the loader looks for TensorFlow and MPI when they are not loaded yet.

    As a rule they are: TensorFlow always, MPI when mpi4py came first. An MPI that is no wheel
    stays where it was found; a wheel lies in lib/ of the environment, and the one that was built
    against may have been in pip's temporary overlay.
    """
    if in_place:
        paths = [str(Path(sysconfig.get_path("purelib"), "tensorflow"))]
        fallback = str(Path(sys.prefix, "lib"))
    else:
        paths = ["$ORIGIN/../tensorflow"]
        fallback = "$ORIGIN/../../.."
    if mpi.package is None:
        return paths + list(mpi.library_dirs)
    return [*paths, fallback]


def nvcc() -> str:
    """CUDA's compiler, for kernels that nothing else needs. HVD_NVCC names it; empty: none."""
    named = os.environ.get("HVD_NVCC")
    if named is not None:
        return named
    folders = [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(folders)) or ""


def has_gpu_kernels(build: Path) -> bool:
    """Whether CMake found that compiler to work."""
    return _cache(build).get("HVD_HAS_GPU_KERNELS") == "ON"


def build_info(
    plan: environment.Plan, version: str, compiler: str, gpu_kernels: bool
) -> dict[str, str | bool]:
    """What hvd_tf/_internal/build_stamp.py compares with what it finds at run time."""
    assert plan.mpi is not None
    return {
        "hvd_tf": version,
        "tensorflow_distribution": plan.tensorflow.package.name,
        "tensorflow_version": plan.tensorflow.package.version,
        "mpi": plan.mpi.flavour,
        "compiler": compiler,
        "with_gpu_kernels": gpu_kernels,
    }


def compiler_of(build: Path) -> str:
    """The first line of `c++ --version` of the compiler that CMake took."""
    return build_tools.runs(_cache(build).get("CMAKE_CXX_COMPILER", "c++")).partition("\n")[0]


def _cache(build: Path) -> dict[str, str]:
    path = build / "CMakeCache.txt"
    text = path.read_text() if path.is_file() else ""
    return dict(re.findall(r"(?m)^([A-Za-z_]+):[A-Z]+=(.*)$", text))


def _generator() -> str:
    return "Ninja" if build_tools.runs("ninja") else "Unix Makefiles"


def _run(command: list[str]) -> None:
    print("+", " ".join(command), flush=True)
    if subprocess.run(command, check=False).returncode:
        raise environment.BuildError(f"compiling tf_ops/ failed at: {' '.join(command[:3])} ...")


def _replace(source: Path, target: Path) -> None:
    # Not copied over the old file: a process that has it loaded would crash.
    fresh = target.with_suffix(".new")
    shutil.copy2(source, fresh)
    os.replace(fresh, target)
