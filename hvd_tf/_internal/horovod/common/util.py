# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.util`: what this build can do, and helpers that programs borrow."""

from __future__ import annotations

import json
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

from hvd_tf._internal import runtime
from hvd_tf._internal.build_stamp import BUILD_INFO
from hvd_tf._internal.util import (
    check_extension,
    check_num_rank_power_of_2,
    extension_available,
    gpu_available,
    split_list,
)
from hvd_tf.exceptions import HorovodVersionMismatchError
from hvd_tf.ops import handle_average_backwards_compatibility


def mpi_built(verbose: bool = False) -> bool:
    """Whether this build has MPI."""
    return runtime.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    """False: hvd_tf needs no Gloo."""
    return runtime.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    """Whether this build has NCCL."""
    return bool(runtime.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    """False."""
    return runtime.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    """False."""
    return runtime.ccl_built()


def cuda_built(verbose: bool = False) -> bool:
    """Whether this build has CUDA."""
    return runtime.cuda_built()


def rocm_built(verbose: bool = False) -> bool:
    """False."""
    return runtime.rocm_built()


def get_ext_suffix() -> str:
    """How names of this Python's compiled modules end."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def check_installed_version(
    name: str, version: str, exception: Optional[BaseException] = None
) -> None:
    """Warns where the build is for another version of TensorFlow.

    With an exception it raises HorovodVersionMismatchError because of it.
    """
    built_for = json.loads(BUILD_INFO.read_text())["tensorflow_version"]
    if name == "tensorflow" and version != built_for:
        mismatch = HorovodVersionMismatchError(name, built_for, version)
        if exception is not None:
            raise mismatch from exception
        warnings.warn(str(mismatch), stacklevel=2)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version such as tf.__version__ is the target, such as "2.4.0", or a later one."""
    from packaging.version import parse

    for value in (ver, target):
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is no version: pass a string")
    if target.count(".") != 2:
        raise ValueError(f"target={target!r}: pass major.minor.patch")
    return bool(parse(ver) >= parse(target))


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[..., int]:
    """`handle_average_backwards_compatibility`. The reduce ops are those of every framework."""
    return handle_average_backwards_compatibility


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is 1, 2, 4, 8, ..."""
    return check_num_rank_power_of_2(num_rank)


def is_iterable(candidate: Any) -> bool:
    """Whether iter() takes it."""
    try:
        iter(candidate)
    except TypeError:
        return False
    return True


@contextmanager
def env(**variables: Any) -> Iterator[None]:
    """Sets environment variables for the block. None removes one."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment({name: None if v is None else str(v) for name, v in variables.items()})
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
