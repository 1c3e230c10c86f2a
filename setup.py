# SPDX-License-Identifier: Apache-2.0
"""What setuptools cannot read from pyproject.toml: the ops, and what depends on TensorFlow."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "_build"))

import environment  # noqa: E402
import native  # noqa: E402
import requirements  # noqa: E402

PLAN = environment.plan()


class BuildNative(build_ext):
    """`build_ext` that leaves the work to CMake."""

    def run(self) -> None:
        in_place = bool(self.inplace or getattr(self, "editable_mode", False))
        base = ROOT if in_place else Path(self.build_lib)
        version = self.distribution.get_version()
        native.install(PLAN, version, base / "hvd_tf", in_place)

    def get_outputs(self) -> list[str]:
        files = ("_native.so", "_build_info.json")
        return [str(Path(self.build_lib, "hvd_tf", file)) for file in files]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


if "sdist" in sys.argv:
    # It is for any TensorFlow and any MPI, so it names neither. What it does name makes setuptools
    # declare the list as dynamic; else resolvers take it for the whole without building.
    version, required = requirements.VERSION, ["numpy"]
else:
    PLAN.check()
    from_sdist = (ROOT / "PKG-INFO").is_file()
    version = requirements.labelled_version(PLAN.tensorflow, from_sdist)
    required = requirements.runtime_requirements(PLAN.tensorflow, PLAN.mpi)

setup(
    version=version,
    license="Apache-2.0",
    install_requires=required,
    # Without sources; it makes the wheel one for this platform.
    ext_modules=[Extension("hvd_tf._native", sources=[])],
    cmdclass={"build_ext": BuildNative},
    options={"build": {"build_base": environment.SETUPTOOLS_BUILD}},
)
