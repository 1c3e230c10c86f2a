# SPDX-License-Identifier: Apache-2.0
"""`horovod.keras`: `hvd_tf.keras`, with the orders of arguments that differ there."""

from __future__ import annotations

from typing import Any, Optional

from horovod.keras import callbacks, elastic
from horovod.tensorflow.mpi_ops import _basics

from hvd_tf import keras as _keras
from hvd_tf.keras import *
from hvd_tf.keras import Average, Compression, global_process_set


def DistributedOptimizer(  # type: ignore[no-redef]  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Any = None,
) -> Any:
    """`hvd_tf.keras.DistributedOptimizer`."""
    return _keras.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        num_groups=num_groups,
        groups=groups,
    )


def PartialDistributedOptimizer(  # type: ignore[no-redef]  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: Any = None,
    process_set: Any = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`hvd_tf.keras.PartialDistributedOptimizer`."""
    return _keras.PartialDistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        groups=groups,
        process_set=process_set,
        local_layers=local_layers,
        scale_local_gradients=scale_local_gradients,
    )
