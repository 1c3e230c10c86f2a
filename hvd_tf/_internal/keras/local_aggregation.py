# SPDX-License-Identifier: Apache-2.0
"""Horovod's LocalGradientAggregationHelper: sums of gradients over several passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import variable_key
from hvd_tf._internal.keras.passes import Passes
from hvd_tf._internal.runtime import ProcessSet, global_process_set

__all__ = ["LocalGradientAggregationHelper"]


class LocalGradientAggregationHelper:
    """Adds up gradients on this rank, and reduces them every few passes.

    In eager code and in `tf.function`. `DistributedOptimizer(..., backward_passes_per_step=k)` does
    all of it. This is for programs with an optimizer of their own.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[..., Any],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int = 0,
        optimizer_type: Any = None,
        process_set: Any = None,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        """For one optimizer.

        Args:
          backward_passes_per_step: how many passes are added up.
          allreduce_func: takes a list of gradients and one of their variables, and returns the
            reduced gradients. It decides on the process set of the reduction.
          sparse_as_dense: make IndexedSlices dense. Otherwise they are refused.
          average_aggregated_gradients: divide the sums by the number of passes.
          rank: not used.
          optimizer_type: not used.
          process_set: its size divides the gradients of local variables. None: all ranks.
          scale_local_gradients: divide them.
          name: not used.
        """
        reducer: Any = _Reducer(allreduce_func, sparse_as_dense)
        reducer.divide_by = (process_set or global_process_set) if scale_local_gradients else None
        self._reducer = reducer
        self.backward_passes_per_step = backward_passes_per_step
        self._passes = Passes(reducer, backward_passes_per_step, average_aggregated_gradients)

    def register_local_var(self, var: Any) -> None:
        """Leave this variable's gradients to each rank: they are not reduced."""
        self._reducer.local.add(variable_key(var))

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:
        """Make one pass. Returns the reduced sums if it is the last one, else the sums so far."""
        return self._passes.aggregate(grads, vars)

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Call the closure after a last pass. Else count the iteration."""
        self._passes.apply(apply_grads_closure, lambda: optimizer.iterations.assign_add(1))


class _Reducer:
    def __init__(self, reduce: Callable[..., Any], sparse_as_dense: bool) -> None:
        self._reduce = reduce
        self._sparse_as_dense = sparse_as_dense
        self.local: set[Any] = set()
        self.divide_by: Optional[ProcessSet] = None

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], names: Any) -> Any:
        del names  # the program's own function chooses them
        if not self.local:
            return self._reduce(gradients, variables)
        found = list(gradients)
        places = [i for i, v in enumerate(variables) if variable_key(v) not in self.local]
        reduced = self._reduce([found[i] for i in places], [variables[i] for i in places])
        if self.divide_by is not None:
            found = [g if g is None else g / self.divide_by.size() for g in found]
        for i, gradient in zip(places, reduced):
            found[i] = gradient
        return found

    def densify(self, gradients: Sequence[Any]) -> list[Any]:
        return [
            tf.convert_to_tensor(g) if self._sparse_as_dense and g is not None else g
            for g in gradients
        ]
