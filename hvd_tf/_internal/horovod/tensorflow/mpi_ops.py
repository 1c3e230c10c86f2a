# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.mpi_ops`."""

from __future__ import annotations

from typing import Any

from horovod.common.basics import HorovodBasics
from horovod.common.util import check_extension, gpu_available

from hvd_tf._internal.api import *
from hvd_tf._internal.tracing import start_timeline, stop_timeline
from hvd_tf.ops import allreduce as _public_allreduce
from hvd_tf.ops import alltoall, grouped_reducescatter, join, reducescatter
from hvd_tf.ops import grouped_allreduce as _public_grouped_allreduce

_basics = HorovodBasics()
_reducescatter = reducescatter
_grouped_reducescatter = grouped_reducescatter

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
