# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.util`: what this build can do, and helpers that programs borrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from hvd_tf._internal import runtime

_T = TypeVar("_T")


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError if there is no extension of this framework. There is one."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether there is an extension for this framework: "tensorflow" or "keras"."""
    return ext_base_name in ("tensorflow", "keras")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the extension reduces tensors on GPUs, and there is a GPU."""
    if not extension_available(ext_base_name) or not runtime.cuda_built():
        return False
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))


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


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether it is 1, 2, 4, 8, ..."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """The same."""
    return num_rank_is_power_2(num_rank)


def split_list(values: Sequence[_T], parts: int) -> list[list[_T]]:
    """Consecutive lists of nearly equal length, the longer ones first."""
    size, longer = divmod(len(values), parts)
    begins = [i * size + min(i, longer) for i in range(parts + 1)]
    return [list(values[begin:end]) for begin, end in zip(begins, begins[1:])]


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
