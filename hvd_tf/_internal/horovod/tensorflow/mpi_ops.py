# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.mpi_ops`."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import tensorflow as tf
from horovod.common.basics import HorovodBasics
from horovod.common.util import check_extension, gpu_available

from hvd_tf._internal.api import *
from hvd_tf._internal.tracing import start_timeline, stop_timeline
from hvd_tf.ops import allreduce as _public_allreduce
from hvd_tf.ops import alltoall, grouped_reducescatter, join, reducescatter
from hvd_tf.ops import grouped_allreduce as _public_grouped_allreduce

_basics = HorovodBasics()

__all__ = [
    "alltoall",
    "check_extension",
    "gpu_available",
    "grouped_reducescatter",
    "join",
    "reducescatter",
    "start_timeline",
    "stop_timeline",
]


def _allreduce(
    tensor: Any,
    name: Any = None,
    op: int = HorovodBasics.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = None,
) -> Any:
    """`allreduce` with another order of arguments, and Sum where no op is given."""
    more = {} if process_set is None else {"process_set": process_set}
    return _public_allreduce(
        tensor,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        ignore_name_scope=ignore_name_scope,
        **more,
    )


def _grouped_allreduce(
    tensors: Any,
    name: Any = None,
    op: int = HorovodBasics.Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: Any = None,
) -> Any:
    """`grouped_allreduce` with another order of arguments, and Sum where no op is given."""
    more = {} if process_set is None else {"process_set": process_set}
    return _public_grouped_allreduce(
        tensors,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        ignore_name_scope=ignore_name_scope,
        **more,
    )


def _reducescatter(
    tensor: Any,
    name: Any = None,
    op: int = HorovodBasics.Sum,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`reducescatter` with another order of arguments, and Sum where no op is given."""
    return reducescatter(
        tensor,
        op=op,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _grouped_reducescatter(
    tensors: Any,
    name: Any = None,
    op: int = HorovodBasics.Sum,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`grouped_reducescatter` with another order of arguments, and Sum where no op is given."""
    with tf.name_scope("") if ignore_name_scope else nullcontext():
        return grouped_reducescatter(
            tensors,
            op=op,
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
