# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.util`: what this build can do, and helpers that programs borrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvd_tf._internal import runtime
from hvd_tf._internal.util import (
    check_extension,
    check_num_rank_power_of_2,
    extension_available,
    gpu_available,
    split_list,
)


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
