# SPDX-License-Identifier: Apache-2.0
"""Horovod's LocalGradientAggregationHelper: sums of gradients over several passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_tf._internal.keras.passes import Passes

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
    ) -> None:
        """For one optimizer.

        Args:
          backward_passes_per_step: how many passes are added up.
          allreduce_func: takes a list of gradients and one of their variables, and returns the
            reduced gradients. It decides on the process set and on local gradients.
          sparse_as_dense: make IndexedSlices dense. Otherwise they are refused.
          average_aggregated_gradients: divide the sums by the number of passes.
          rank: not used.
          optimizer_type: not used.
          process_set: not used.
          scale_local_gradients: not used.
        """
        reducer: Any = _Reducer(allreduce_func, sparse_as_dense)
        self.backward_passes_per_step = backward_passes_per_step
        self._passes = Passes(reducer, backward_passes_per_step, average_aggregated_gradients)

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

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], names: Any) -> Any:
        del names  # the program's own function chooses them
        return self._reduce(gradients, variables)

    def densify(self, gradients: Sequence[Any]) -> list[Any]:
        return [
            tf.convert_to_tensor(g) if self._sparse_as_dense and g is not None else g
            for g in gradients
        ]
