# SPDX-License-Identifier: Apache-2.0
"""hvdrun --check-build: what the library was built for, and whether that is what is there."""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from collections.abc import Mapping
from typing import Any

from hvd_tf._internal import build_stamp, nccl
from hvd_tf._internal.launcher import found_tensorflow, mpirun
from hvd_tf._internal.launcher.errors import LaunchError

_CUDA_DRIVER = "libcuda.so.1"
_NO_DRIVER = f"no {_CUDA_DRIVER} here, which NVIDIA's driver brings"
_NO_KERNELS = ": there was no nvcc that worked when hvd_tf was built"
_NO_NCCL = "no libnccl.so.2 here; pip install nvidia-nccl-cu12"


def facts(environ: Mapping[str, str]) -> dict[str, Any]:
    """About the build and this machine, ready for JSON. `problem`: why it does not work, or None.

    Imports no TensorFlow and runs no more than `mpirun --version`.
    """
    info, wrong = _info(), problem()
    try:
        found = mpirun.find(environ)
        launcher = {"path": found.path, "family": found.family, "major": found.major}
    except LaunchError as error:
        launcher, wrong = None, wrong or str(error)
    distribution, version = info.get("tensorflow_distribution"), info.get("tensorflow_version")
    there = found_tensorflow.find() or (distribution, _installed(distribution))
    return {
        "hvd_tf": info.get("hvd_tf"),
        "python": platform.python_version(),
        "tensorflow": {
            "distribution": distribution,
            "built_for": version,
            "installed_distribution": there[0] if there[1] else None,
            "installed": there[1],
        },
        "mpi": info.get("mpi"),
        "mpirun": launcher,
        # Every build can use them, and looks for them in `hvd.init`.
        "cuda_driver": _CUDA_DRIVER if nccl.can_load(_CUDA_DRIVER) else None,
        "nccl": nccl.find_nccl(),
        "nccl_error": nccl.why_not_loaded(),
        "gpu_kernels": info.get("with_gpu_kernels", False),
        "compiler": info.get("compiler"),
        "problem": wrong,
    }


def problem() -> str | None:
    """Why the library that was built does not work here, or None."""
    try:
        build_stamp.check_build()
    except ImportError as error:
        return str(error)
    info = _info()
    distribution, version = info.get("tensorflow_distribution"), str(info.get("tensorflow_version"))
    if importlib.util.find_spec("tensorflow") is None:
        return f"there is no TensorFlow in {sys.prefix}: pip install {distribution}=={version}"
    # Of no distribution, or of one that cannot be told, it is for `init` to judge.
    found = found_tensorflow.find()
    if found is None or _is_same(version, found.version):
        return None
    return build_stamp.does_not_fit(
        f"{distribution} {version}", " ".join(found), f"{found.name}=={version}"
    )


def report(found: Mapping[str, Any]) -> str:
    """The facts for people, with a line feed at the end."""
    tensorflow, launcher = found["tensorflow"], found["mpirun"]
    built = f"{tensorflow['distribution']} {tensorflow['built_for']}"
    installed, name = tensorflow["installed"], tensorflow["installed_distribution"]
    fits = installed and _is_same(tensorflow["built_for"] or "", installed)
    if installed and name != tensorflow["distribution"]:
        installed = f"{name} {installed}"
    lines = [
        f"hvd_tf {found['hvd_tf'] or '(not built)'}, Python {found['python']}",
        _line(fits, f"TensorFlow: built for {built}, installed: {installed or 'no'}"),
        _line(found["mpi"], f"MPI: {found['mpi'] or 'no'}"),
        _line(launcher, f"mpirun: {launcher['path'] if launcher else 'no'}"),
        _line(found["cuda_driver"], f"GPU lane: {found['cuda_driver'] or _NO_DRIVER}"),
        _line(found["nccl"], f"NCCL: {found['nccl'] or found['nccl_error'] or _NO_NCCL}"),
        _line(found["gpu_kernels"], f"GPU kernels{'' if found['gpu_kernels'] else _NO_KERNELS}"),
        f"    compiler: {found['compiler'] or 'unknown'}",
    ]
    if found["problem"]:
        lines.append(f"It does not work here: {found['problem']}")
    return "\n".join(lines) + "\n"


def _is_same(built_for: str, installed: str) -> bool:
    """Whether both distributions can be of one version of TensorFlow. A vendor may add to it."""
    pairs = ((built_for, installed), (installed, built_for))
    return any(build_stamp.is_version_of(longer, shorter) for longer, shorter in pairs)


def _line(there: object, text: str) -> str:
    return f"[{'X' if there else ' '}] {text}"


def _info() -> dict[str, Any]:
    try:
        info = json.loads(build_stamp.BUILD_INFO.read_text())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _installed(distribution: str | None) -> str | None:
    # Imported here, for it takes longer than all the rest.
    from importlib import metadata

    try:
        return metadata.version(distribution) if distribution else None
    except metadata.PackageNotFoundError:
        return None
