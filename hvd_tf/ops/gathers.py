# SPDX-License-Identifier: Apache-2.0
"""allgather and grouped_allgather, each with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.eager_words import run_operation
from hvd_tf._internal.op_names import Names, call_names, gradient_names
from hvd_tf._internal.runtime import Average, ProcessSet, global_process_set
from hvd_tf.ops.arguments import by_dtype, registered_id
from hvd_tf.ops.facts import rank_op

_MOST_SLICED = 8  # dimensions of tensors that TensorFlow can take a slice of


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    Args:
      tensor: what tf.convert_to_tensor accepts, with one dimension or more. The dtype and the
        shape but for the first dimension must be the same on every rank.
      name: as in `allreduce`.
      ignore_name_scope: as in `allreduce`.
      process_set: as in `allreduce`.

    Returns:
      A tensor of the input's dtype and shape. Only the first dimension differs: it is the sum
      over the ranks.
    """
    tensor = tf.convert_to_tensor(tensor)
    names = call_names("allgather", "HorovodAllgather", tensor, name, ignore_name_scope)
    return gather(tensor, names, registered_id(process_set))


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gathers several tensors that are agreed on, travel and fail as one per dtype.

    Like `allgather`. `tensors` must be in the same order on every rank. The results have that
    order. An empty list is returned as it is.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    inputs = [tf.convert_to_tensor(tensor) for tensor in tensors]
    names = call_names(
        "grouped_allgather", "HorovodGroupedAllgather", inputs[0], name, ignore_name_scope
    )
    return gather_all(inputs, names, process_set)


def gather(tensor: tf.Tensor, names: Names, set_id: int) -> tf.Tensor:
    return run_operation(
        native.ops.horovod_allgather,
        tensor=tensor,
        tensor_name=names.tensor_name,
        process_set_id=set_id,
        name=names.node,
    )


def gather_all(tensors: list[tf.Tensor], names: Names, process_set: ProcessSet) -> list[tf.Tensor]:
    set_id = registered_id(process_set)
    if len(tensors) == 1:
        return [gather(tensors[0], names, set_id)]
    return by_dtype(
        tensors,
        names,
        lambda part, part_name: list(
            run_operation(
                native.ops.horovod_grouped_allgather,
                tensors=part,
                tensor_name=part_name.tensor_name,
                process_set_id=set_id,
                name=part_name.node,
            )
        ),
    )


@tf.RegisterGradient("HorovodAllgather")
def _allgather_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """The average of the upstream gradients, for this rank's rows."""
    return _own_rows(op, op.inputs[0], gradient, "gradient")


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather_gradient(op: Any, *gradients: Any) -> list[tf.Tensor]:
    return [
        _own_rows(op, tensor, gradient, f"gradient.{i}")
        for i, (tensor, gradient) in enumerate(zip(op.inputs, gradients))
    ]


def _own_rows(op: Any, tensor: tf.Tensor, gradient: Any, part: str) -> tf.Tensor:
    set_id = op.get_attr("process_set_id")
    names = gradient_names(op, f"/{part}")
    average = run_operation(
        native.ops.horovod_allreduce,
        # TensorFlow may fill in a missing gradient as float32 zeros.
        tensor=tf.cast(tf.convert_to_tensor(gradient), tensor.dtype),
        reduce_op=Average,
        tensor_name=names.tensor_name,
        process_set_id=set_id,
        name=names.node,
    )
    # Pairs of rank and rows, because ranks that have joined have none. The rank is that of the
    # process that runs the graph, which another one may have built. A set has its ranks in
    # ascending order.
    rows = tf.shape(tensor, out_type=tf.int64)[0]
    rank = tf.cast(rank_op(), tf.int64)
    pairs = gather(tf.stack([[rank, rows]]), gradient_names(op, f"/{part}/rows"), set_id)
    before = tf.where(pairs[:, 0] < rank, pairs[:, 1], 0)
    start = tf.reduce_sum(before)
    dimensions = tensor.shape.rank
    if dimensions is None or dimensions <= _MOST_SLICED:
        return average[start : start + rows]
    return tf.gather(average, tf.range(start, start + rows))
