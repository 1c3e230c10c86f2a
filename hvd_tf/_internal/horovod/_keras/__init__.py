# SPDX-License-Identifier: Apache-2.0
"""`horovod._keras`: what the two modules for Keras share there."""

from __future__ import annotations

from typing import Any, Optional

from hvd_tf import keras as _keras
from hvd_tf.keras import Average, Compression, global_process_set


def create_distributed_optimizer(
    keras: Any,
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """`hvd_tf.keras.DistributedOptimizer`. The module `keras` is found by the optimizer."""
    return _keras.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
