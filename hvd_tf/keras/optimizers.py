# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer` and `PartialDistributedOptimizer` for Keras."""

from __future__ import annotations

from typing import Any, Optional

from hvd_tf._internal.compat import is_keras_optimizer
from hvd_tf._internal.counts import checked_count
from hvd_tf._internal.gradients import GradientReducer, Groups, checked_layers
from hvd_tf._internal.keras.optimizers import distribute
from hvd_tf._internal.runtime import Average, ProcessSet, Sum, global_process_set
from hvd_tf.compression import Compression


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
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
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer of Keras so that all ranks apply the same gradients.

    Args:
      optimizer: of Keras 2 (also a legacy one), tf_keras, or Keras 3 with TensorFlow.
      name: tells this optimizer's gradients from those of others; the same on every rank.
        Default: "Distributed" and the class name of `optimizer`.
      device_dense: the device that reduces dense gradients; "" leaves the choice to TensorFlow.
      device_sparse: the same for IndexedSlices.
      compression: `Compression.none`, `.fp16` or `.bf16`, also for the values of IndexedSlices; or
        a class with `compress` and `decompress`, which is called for dense gradients only.
      sparse_as_dense: make IndexedSlices dense before they are reduced.
      gradient_predivide_factor: divide gradients by this factor before they are summed, and by
        size/factor afterwards. Needs op=Average.
      op: `Average` or `Sum`.
      backward_passes_per_step: k > 1 adds up the gradients of k passes, and reduces and applies
        them in the k-th. `iterations` counts every pass.
      average_aggregated_gradients: divide the sum over k passes by k.
      num_groups: deprecated, use groups.
      groups: dense gradients that travel and fail together: a number of groups, or lists of
        variables (others travel on their own). Different dtypes never share a group.
      process_set: the ranks that reduce; others keep their own gradients.
      scale_local_gradients: see `register_local_var` of the returned optimizer.

    Returns:
      An optimizer of a class derived from that of `optimizer`, with the same name. It shares all
      state with `optimizer`, so checkpoints of either fit the other.
      Call either, not both, where `optimizer` has no slots yet. If it is wrapped again before it
      has any, each further one has a state of its own, made from `get_config`.

    Raises:
      ValueError: for anything that is no optimizer of Keras or is distributed already, another op,
        a predivide factor without Average, malformed groups, backward_passes_per_step < 1, or a
        Keras whose backend is not TensorFlow.
    """
    if not is_keras_optimizer(optimizer):
        raise ValueError(f"optimizer must be an optimizer of Keras. Received: {optimizer!r}")
    if op not in (Average, Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum. Received: {op!r}")
    passes = checked_count("backward_passes_per_step", backward_passes_per_step)
    reducer = GradientReducer(
        name or f"Distributed{type(optimizer).__name__}",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        num_groups=num_groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return distribute(optimizer, reducer, passes, average_aggregated_gradients)


def PartialDistributedOptimizer(  # noqa: N802 (Horovod's name)
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
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedOptimizer` in which the weights of some layers stay on their rank.

    Args, errors and result are those of `DistributedOptimizer`, but for `local_layers`: a layer or
    several. The gradients of their trainable weights are not reduced
    (`register_local_var`). Layers may be built later.

    Raises:
      ValueError: also where `local_layers` has anything but layers.
    """
    layers = checked_layers(local_layers)
    distributed = DistributedOptimizer(
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
    for layer in layers:
        distributed._hvd_reducer.register_local_layer(layer)
    return distributed
