# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow`: `hvd_tf`, with the other names that programs of Horovod use."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.util import check_num_rank_power_of_2, gpu_available
from horovod.tensorflow import compression, elastic, functions, mpi_ops, util
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    _allreduce,
    _basics,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
)
from horovod.tensorflow.util import (
    _cache,
    _executing_eagerly,
    _make_subgraph,
    check_extension,
    refs_to_vars,
    split_list,
    vars_to_refs,
)

from hvd_tf._internal.api import *
from hvd_tf._internal.gradients import GradientReducer
from hvd_tf.compression import Compression
from hvd_tf.process_sets import global_process_set

del globals()["data"]  # hvd_tf.data, which is something else


# Without it, import * would leave out what is imported on first use.
__all__ = [name for name in globals() if not name.startswith("_")] + ["SyncBatchNormalization"]


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # it imports Keras
        from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module 'horovod.tensorflow' has no attribute {name!r}")


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: Any,
    process_set: Any = global_process_set,
) -> Any:
    """A function of gradients and their variables that returns the reduced gradients."""
    return GradientReducer(
        name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression or Compression.none,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
    ).reduce


def _allreduce_cond(
    tensor: Any, *args: Any, process_set: Any = global_process_set, **kwargs: Any
) -> Any:
    """`allreduce`, or the tensor itself where this rank is not in the set or alone in it."""
    if not process_set.included() or process_set.size() == 1:
        return tensor if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor)
    return mpi_ops.allreduce(tensor, *args, process_set=process_set, **kwargs)


def _grouped_allreduce_cond(
    tensors: Any, *args: Any, process_set: Any = global_process_set, **kwargs: Any
) -> Any:
    """The same for a list."""
    if not process_set.included() or process_set.size() == 1:
        return list(tensors)
    return mpi_ops.grouped_allreduce(tensors, *args, process_set=process_set, **kwargs)
