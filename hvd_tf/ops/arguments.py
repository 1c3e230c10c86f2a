# SPDX-License-Identifier: Apache-2.0
"""Checks and conversions of arguments that all verbs share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.op_names import Names, part_names
from hvd_tf._internal.runtime import Adasum, Average, Max, Min, ProcessSet, Product, Sum
from hvd_tf.process_sets import REGISTER

OP_NAMES = {
    Average: "Average",
    Sum: "Sum",
    Adasum: "Adasum",
    Min: "Min",
    Max: "Max",
    Product: "Product",
}


def handle_average_backwards_compatibility(op: Optional[int], average: Optional[bool]) -> int:
    """The reduce op of `op` or its deprecated alias `average`. The default is Average.

    Raises:
      ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("pass op or average, not both; average is deprecated, so pass op")
    warnings.warn(
        "average= is deprecated; pass op=hvd.Average or op=hvd.Sum",
        DeprecationWarning,
        stacklevel=3,
    )
    return Average if average else Sum


def check_op(op: int) -> None:
    if op not in OP_NAMES:
        raise ValueError(
            f"op={op!r}: use hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max or hvd.Product"
        )


def registered_id(process_set: ProcessSet) -> int:
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not registered; {REGISTER}")
    return process_set.process_set_id


def on_device(device: str) -> AbstractContextManager[Any]:
    """`tf.device`, but for "": in eager code TensorFlow takes that for the CPU."""
    return tf.device(device) if device else nullcontext()


def by_dtype(
    tensors: Sequence[tf.Tensor],
    names: Names,
    run: Callable[[list[tf.Tensor], Names], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Calls `run` for the tensors of each dtype, because one operation has one dtype."""
    places: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(i)
    results: list[Any] = [None] * len(tensors)
    for dtype, indices in places.items():
        part = names if len(places) == 1 else part_names(names, dtype.name)
        for i, result in zip(indices, run([tensors[i] for i in indices], part)):
            results[i] = result
    return results


def shaped_as(tensor: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """The gradient, of which is known what is known of the tensor's shape."""
    # TensorFlow refuses it where nothing is known of one, and something of the other.
    return gradient if tensor.shape.rank is None else tf.ensure_shape(gradient, tensor.shape)
