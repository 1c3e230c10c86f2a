# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod that hvd_tf does not offer yet. Calling one says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Optional

from hvd_tf._internal.runtime import Average, ProcessSet, global_process_set
from hvd_tf.compression import Compression

__all__ = [
    "add_process_set",
    "alltoall",
    "grouped_reducescatter",
    "join",
    "reducescatter",
    "remove_process_set",
    "start_timeline",
    "stop_timeline",
]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("alltoall", "use allgather, and take this rank's rows of its result")


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("reducescatter", "use allreduce, and take this rank's rows of its result")


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("grouped_reducescatter", "use grouped_allreduce, and take this rank's rows")


def join() -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("join", "give every rank equally many batches: hvd_tf.data does")


def add_process_set(process_set: Any) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("add_process_set", "pass the sets to hvd.init(process_sets=[...])")


def remove_process_set(process_set: Any) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("remove_process_set", "a set costs nothing while no call uses it")


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("start_timeline", "the profiler of TensorFlow shows the operations")


def stop_timeline() -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("stop_timeline", "there is none")


def _refuse(name: str, remedy: str) -> NoReturn:
    raise NotImplementedError(f"hvd_tf.{name} is not offered yet: {remedy}")
