# SPDX-License-Identifier: Apache-2.0
"""reducescatter and grouped_reducescatter, each with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.eager_words import word_of
from hvd_tf._internal.op_names import call_names, gradient_names
from hvd_tf._internal.runtime import Adasum, Average, ProcessSet, Sum, global_process_set
from hvd_tf.compression import Compression
from hvd_tf.ops.arguments import on_device, shaped_as
from hvd_tf.ops.facts import size_op
from hvd_tf.ops.gathers import gather
from hvd_tf.ops.reducing import Reduction, reduce_group, reduce_one


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over the ranks, and gives each rank some rows of the result.

    The rows have the bits that `allreduce` would give them.

    Args:
      tensor: what tf.convert_to_tensor accepts, with one dimension or more; the same shape and
        dtype on every rank.
      device_dense: where the operation is placed, such as "/cpu:0".
      compression: what a floating tensor is cast to on the wire.
      op: Average (the default), Sum, Min, Max or Product. An integer average is truncated.
      name: as in `allreduce`.
      process_set: as in `allreduce`.
      ignore_name_scope: as in `allreduce`.
      prescale_factor: multiplies each input.
      postscale_factor: multiplies the result.

    Returns:
      This rank's rows of the result. Ranks get as many rows each, in rank order. Where they do
      not divide, the first ranks get one more.

    Raises:
      ValueError: an unknown op; an unregistered process set; no name in a thread that needs one.
    """
    with on_device(device_dense):
        tensor = tf.convert_to_tensor(tensor)
        names = call_names("reducescatter", "HorovodReducescatter", tensor, name, ignore_name_scope)
        reduction = _reduction(op, prescale_factor, postscale_factor, process_set)
        scatter = native.ops.horovod_reducescatter
        return reduce_one(scatter, reduction, tensor, compression, names)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
) -> list[tf.Tensor]:
    """Reduces and scatters several tensors that are agreed on, travel and fail as one per dtype.

    Args and errors are `reducescatter`'s, but for `tensors`: a list in the same order on every
    rank.

    Returns:
      The results in the order of `tensors`. An empty list is returned as it is.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    with on_device(device_dense):
        inputs = [tf.convert_to_tensor(tensor) for tensor in tensors]
        names = call_names(
            "grouped_reducescatter", "HorovodGroupedReducescatter", inputs[0], name, False
        )
        reduction = _reduction(op, prescale_factor, postscale_factor, process_set)
        scatter = native.ops.horovod_grouped_reducescatter
        return reduce_group(scatter, reduction, inputs, compression, names)


def _reduction(
    op: int, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> Reduction:
    if op == Adasum:
        raise ValueError("op=hvd.Adasum: reducescatter offers hvd.Average, Sum, Min, Max, Product")
    return Reduction(op, prescale_factor, postscale_factor, process_set)


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """The ranks' upstream gradients, gathered; times the size for Sum.

    As Horovod's. With the gradient of `allgather`, a reducescatter and an allgather have the
    gradient of an allreduce.
    """
    return _gathered(op, op.inputs[0], gradient, "gradient")


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _grouped_reducescatter_gradient(op: Any, *gradients: Any) -> list[tf.Tensor]:
    return [
        _gathered(op, tensor, gradient, f"gradient.{i}")
        for i, (tensor, gradient) in enumerate(zip(op.inputs, gradients))
    ]


def _gathered(op: Any, tensor: tf.Tensor, gradient: Any, part: str) -> tf.Tensor:
    set_id = op.get_attr("process_set_id")
    # TensorFlow may fill in a missing gradient as float32 zeros.
    gradient = tf.cast(tf.convert_to_tensor(gradient), tensor.dtype)
    scale = float(word_of(op, "exact_prescale")) * float(word_of(op, "exact_postscale"))
    scale *= op.get_attr("prescale_factor") * op.get_attr("postscale_factor")
    if scale != 1.0:
        gradient = gradient * tf.cast(scale, gradient.dtype)
    if op.get_attr("reduce_op") == Sum:
        gradient = gradient * tf.cast(size_op(set_id), gradient.dtype)
    return shaped_as(tensor, gather(gradient, gradient_names(op, f"/{part}"), set_id))
