# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: an optimizer whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.accumulation import GradientAccumulator
from hvd_tf._internal.compat import Variable, is_keras_optimizer, v1
from hvd_tf._internal.gradients import Gradient, GradientReducer, Groups
from hvd_tf._internal.runtime import Adasum, Average, ProcessSet, global_process_set
from hvd_tf.compression import Compression

Optimizer = Any  # of tf.compat.v1.train
GradsAndVars = Sequence[tuple[Any, Variable]]


class _DistributedOptimizer(v1.train.Optimizer):
    """Reduces gradients in `compute_gradients`. The wrapped optimizer does everything else.

    It owns no variable. The wrapped optimizer makes, names, saves and restores slots. So a
    checkpoint fits the model with and without this wrapper.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
        accumulator: GradientAccumulator,
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reducer = reducer
        self._accumulator = accumulator

    def __getattr__(self, name: str) -> Any:
        # Called for attributes that neither this object nor its class has. `self._optimizer` itself
        # may be missing: copy and pickle ask before __init__.
        if name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    # What programs of Horovod look at.

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce."""
        return self._reducer.process_set

    @property
    def _local_vars(self) -> list[Variable]:
        return self._reducer.local_variables

    @property
    def _agg_helper(self) -> Optional[GradientAccumulator]:
        return self._accumulator if self._accumulator.passes > 1 else None

    def _allreduce_grads(
        self, grads: Sequence[Gradient], vars: Sequence[Variable]
    ) -> list[Gradient]:
        return self._reducer.reduce(grads, vars)

    def register_local_var(self, var: Variable) -> None:
        """Keep this variable's gradient on its rank.

        It is not reduced. It is divided by the size of the process set, unless
        scale_local_gradients is False.
        """
        self._reducer.register_local_var(var)

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
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        return self._accumulator.apply(
            lambda: self._optimizer.apply_gradients(pairs, global_step=global_step),
            global_step,
            name,
        )

    def get_slot(self, var: Variable, name: str) -> Any:
        """The wrapped optimizer's slot variable of that name for `var`, or None."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The wrapped optimizer's slot names."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        """The wrapped optimizer's variables: slots, and accumulators such as beta1_power."""
        return self._optimizer.variables()

    # tf.train.Checkpoint asks an optimizer for these. TensorFlow's base class would answer from its
    # own slots, which are empty here.

    def _trackable_children(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._trackable_children(*args, **kwargs)

    def _lookup_dependency(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._lookup_dependency(*args, **kwargs)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer._create_or_restore_slot_variable(*args, **kwargs)

    def _restore_slot_variable(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer._restore_slot_variable(*args, **kwargs)

    @property
    def _deferred_dependencies(self) -> Any:
        self._optimizer._maybe_initialize_trackable()
        return self._optimizer._deferred_dependencies


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
    """Wrap an optimizer of tf.compat.v1.train so that all ranks apply the same gradients.

    One of Keras goes to `hvd_tf.keras.DistributedOptimizer`.

    Args:
      optimizer: any optimizer of tf.compat.v1.train but SyncReplicasOptimizer.
      name: tells this optimizer's gradients from those of others; the same on every rank.
        Default: "Distributed" and the class name of `optimizer`.
      use_locking: kept for the base class. The wrapped optimizer's own setting counts.
      device_dense: the device that reduces dense gradients; "" leaves the choice to TensorFlow.
      device_sparse: the same for IndexedSlices.
      compression: `Compression.none`, `.fp16`, `.bf16` or a class with `compress` and
        `decompress`; for dense gradients.
      sparse_as_dense: make IndexedSlices dense before they are reduced.
      backward_passes_per_step: k > 1 adds up the gradients of k runs, and reduces and applies them
        in the k-th. The global step counts every run. Graphs only.
      op: `Average`, `Sum`, `Min`, `Max` or `Product`; IndexedSlices take the first two.
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
        malformed groups, backward_passes_per_step < 1, or > 1 in eager code.
      NotImplementedError: for op=Adasum.
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
    accumulator = GradientAccumulator(
        reducer, backward_passes_per_step, average_aggregated_gradients
    )
    return _DistributedOptimizer(optimizer, name, use_locking, reducer, accumulator)
