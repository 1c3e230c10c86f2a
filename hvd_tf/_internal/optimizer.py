# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: an optimizer whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.accumulation import GradientAccumulator
from hvd_tf._internal.compat import Variable, is_keras_optimizer, v1
from hvd_tf._internal.compat.graph_loss_scale import patch_loss_scaling_of_graphs
from hvd_tf._internal.delta_optimizer import DeltaOptimizer
from hvd_tf._internal.gradients import GradientReducer, Groups
from hvd_tf._internal.optimizer_wrapper import GradsAndVars, Optimizer, OptimizerWrapper
from hvd_tf._internal.runtime import Adasum, Average, ProcessSet, global_process_set
from hvd_tf._internal.unique_rows import applied_as_they_are
from hvd_tf.compression import Compression


class _DistributedOptimizer(OptimizerWrapper):
    """Reduces gradients in `compute_gradients`."""

    def __init__(
        self,
        optimizer: Optimizer,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
        accumulator: GradientAccumulator,
    ) -> None:
        super().__init__(optimizer, name, use_locking, reducer)
        self._accumulator = accumulator

    @property
    def _agg_helper(self) -> Optional[GradientAccumulator]:
        return self._accumulator if self._accumulator.passes > 1 else None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Variable]]:
        """The wrapped optimizer's `compute_gradients` with the gradients reduced.

        Every rank must call it for the same variables. With backward_passes_per_step=k the
        gradients are complete on every k-th run only. Raises ValueError before `init`.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return list(pairs)
        gradients, variables = zip(*pairs)
        return list(zip(self._accumulator.reduce(gradients, variables), variables))

    def apply_gradients(
        self,
        grads_and_vars: GradsAndVars,
        global_step: Optional[Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """The wrapped optimizer's `apply_gradients`. It does not reduce.

        With backward_passes_per_step=k every k-th run updates the variables. The global step counts
        every run.
        """
        pairs = list(grads_and_vars)  # it may be an iterator
        if self._accumulator.passes == 1:
            with applied_as_they_are(self._optimizer):
                return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        return self._accumulator.apply(
            lambda: self._optimizer.apply_gradients(pairs, global_step=global_step),
            pairs,
            global_step,
            name,
        )

    def apply_within(
        self,
        pairs: GradsAndVars,
        global_step: Optional[Variable],
        name: Optional[str],
        apply: Callable[..., tf.Operation],
    ) -> tf.Operation:
        """Lets a loss scale optimizer around this one look at gradients on a k-th run only.

        apply: what it does, with `name=` or without. It calls `apply_gradients`.
        """
        if self._accumulator.passes == 1:
            return apply(name=name)
        return self._accumulator.apply(apply, pairs, global_step, name)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Optimizer,
    name: Optional[str] = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Optimizer:
    """Wraps an optimizer of tf.compat.v1.train so that all ranks apply the same gradients.

    One of Keras goes to `hvd_tf.keras.DistributedOptimizer`.

    Args:
      optimizer: any optimizer of tf.compat.v1.train but SyncReplicasOptimizer.
      name: tells this optimizer's gradients from those of others; the same on every rank.
        Default: "Distributed" and the class name of `optimizer`.
      use_locking: kept for the base class. The wrapped optimizer's own setting counts.
      device_dense: the device that reduces dense gradients; "" leaves the choice to TensorFlow.
      device_sparse: the same for IndexedSlices.
      compression: `Compression.none`, `.fp16` or `.bf16`, also for the values of IndexedSlices; or
        a class with `compress` and `decompress`, which is called for dense gradients only.
      sparse_as_dense: make IndexedSlices dense before they are reduced.
      backward_passes_per_step: k > 1 adds up the gradients of k runs, and reduces and applies them
        in the k-th. The global step counts every run. Graphs only. The sums are local variables:
        a plain Session has to run tf.compat.v1.local_variables_initializer() too.
      op: `Average`, `Sum`, `Min`, `Max` or `Product`; IndexedSlices take the first two. `Adasum`
        does not reduce gradients: each rank takes a step of its own, and the steps are combined.
      gradient_predivide_factor: divide gradients by this factor before they are summed, and by
        size/factor afterwards. Needs op=Average.
      average_aggregated_gradients: divide the sum over k runs by k.
      num_groups: deprecated, use groups.
      groups: dense gradients that travel and fail together: a number of groups, or lists of
        variables (others travel on their own). Different dtypes never share a group.
      process_set: the ranks that reduce; others keep their own gradients.
      scale_local_gradients: see `register_local_var` of the returned optimizer.

    Returns:
      A tf.compat.v1.train.Optimizer. Variables, slots and checkpoints are those of `optimizer`.

    Raises:
      ValueError: for anything that is no such optimizer, a predivide factor without Average,
        malformed groups, backward_passes_per_step < 1, or > 1 in eager code,
        average_aggregated_gradients with op=Adasum.
    """
    if is_keras_optimizer(optimizer):
        from hvd_tf.keras import optimizers as keras_optimizers  # Keras is imported already

        return keras_optimizers.DistributedOptimizer(
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
            num_groups=num_groups,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
    _check_optimizer(optimizer)
    patch_loss_scaling_of_graphs(OptimizerWrapper)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients cannot be combined with op=Adasum")
    name = name or f"Distributed{type(optimizer).__name__}"
    reducer = GradientReducer(
        name,
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
    if op == Adasum:
        return DeltaOptimizer(optimizer, name, use_locking, reducer, backward_passes_per_step)
    accumulator = GradientAccumulator(
        reducer, backward_passes_per_step, average_aggregated_gradients
    )
    return _DistributedOptimizer(optimizer, name, use_locking, reducer, accumulator)


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, v1.train.Optimizer):
        raise ValueError(
            "optimizer must be an optimizer of tf.compat.v1.train or of Keras. Received: "
            f"{optimizer!r} ({type(optimizer).__module__}.{type(optimizer).__name__})"
        )
    if isinstance(optimizer, v1.train.SyncReplicasOptimizer):
        raise ValueError(
            "SyncReplicasOptimizer collects gradients on parameter servers, which hvd_tf does "
            "not use: pass the optimizer inside it"
        )
