# SPDX-License-Identifier: Apache-2.0
"""Spares optimizers the search for duplicate indices in gradients that have none.

TensorFlow's optimizers add up rows of equal index before they apply tf.IndexedSlices. A sparse
allreduce has done that. What stands here shows it by the operation that the indices come from, so
whatever a program does with the values in between, such as clipping, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from hvd_tf._internal.compat import v1

_MAKES_UNIQUE = "HorovodSparseAllreduce"


def are_unique(indices: Any) -> bool:
    """Whether no index is there twice, as far as a graph shows. Eager code shows nothing."""
    if not isinstance(indices, tf.Tensor) or not hasattr(indices, "graph"):
        return False
    if indices.op.type != _MAKES_UNIQUE:
        return False
    return indices.value_index >= indices.op.get_attr("num_tensors")  # its sums come first


@contextmanager
def applied_as_they_are(optimizer: Any) -> Iterator[None]:
    """In the block an optimizer of tf.compat.v1.train takes unique indices as they are.

    An optimizer that has a way of its own with duplicates keeps it.
    """
    base: Any = v1.train.Optimizer

    def apply_to_resource(gradient: Any, handle: Any, indices: Any) -> Any:
        if are_unique(indices):
            return optimizer._resource_apply_sparse(gradient, handle, indices)
        return base._resource_apply_sparse_duplicate_indices(optimizer, gradient, handle, indices)

    def apply_to_reference(gradient: Any, variable: Any) -> Any:
        if are_unique(gradient.indices):
            return optimizer._apply_sparse(gradient, variable)
        return base._apply_sparse_duplicate_indices(optimizer, gradient, variable)

    methods = {
        "_resource_apply_sparse_duplicate_indices": apply_to_resource,
        "_apply_sparse_duplicate_indices": apply_to_reference,
    }
    inherited = [name for name in methods if getattr(type(optimizer), name) is getattr(base, name)]
    for name in inherited:
        setattr(optimizer, name, methods[name])
    try:
        yield
    finally:
        for name in inherited:
            delattr(optimizer, name)


class TakesUniqueRows:
    """The same for an optimizer of Keras 2. Stands before its class in the order of resolution."""

    def _deduplicate_sparse_grad(self, grads: Any) -> list[Any]:
        own: Any = super()
        grads = list(grads)
        known = [isinstance(g, tf.IndexedSlices) and are_unique(g.indices) for g in grads]
        others = iter(own._deduplicate_sparse_grad([g for g, k in zip(grads, known) if not k]))
        return [g if k else next(others) for g, k in zip(grads, known)]


class TakesUniqueRowsLegacy:
    """The same for a legacy optimizer of Keras 2."""

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Any, handle: Any, indices: Any, **kwargs: Any
    ) -> Any:
        own: Any = super()
        method = own._resource_apply_sparse_duplicate_indices
        # An optimizer that has a way of its own with duplicates keeps it.
        if method.__qualname__.startswith("OptimizerV2.") and are_unique(indices):
            return self._resource_apply_sparse(grad, handle, indices, **kwargs)  # type: ignore[attr-defined]
        return method(grad, handle, indices, **kwargs)
