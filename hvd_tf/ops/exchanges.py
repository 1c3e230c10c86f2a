# SPDX-License-Identifier: Apache-2.0
"""alltoall, with its gradient."""

from __future__ import annotations

from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.eager_words import run_operation
from hvd_tf._internal.op_names import call_names, gradient_names
from hvd_tf._internal.runtime import ProcessSet, global_process_set
from hvd_tf.ops.arguments import registered_id, shaped_as


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Union[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
    """Sends rows to every rank of a process set, and gets rows from every rank.

    Args:
      tensor: what tf.convert_to_tensor accepts, with one dimension or more: the rows for rank 0,
        then those for rank 1, and so on. The dtype and the shape but for the first dimension
        must be the same on every rank.
      splits: how many rows go to each rank, as integers of shape [size]. They may be 0. Rows
        behind their sum go nowhere. None sends as many rows to each rank.
      name: as in `allreduce`.
      ignore_name_scope: as in `allreduce`.
      process_set: as in `allreduce`.

    Returns:
      A tensor of the input's dtype: the rows that came from rank 0, then those from rank 1, and
      so on. If `splits` was given, a pair of it and of int32 numbers of shape [size]: how many
      rows came from each rank.

    Raises:
      tf.errors.InvalidArgumentError: `splits` has another length, a negative entry, or a sum
        above the number of rows; or it is None, and the rows do not divide by the size.
    """
    tensor = tf.convert_to_tensor(tensor)
    names = call_names("alltoall", "HorovodAlltoall", tensor, name, ignore_name_scope)
    numbers = tf.zeros([0], tf.int32) if splits is None else _as_int32(splits)
    output, received = run_operation(
        native.ops.horovod_alltoall,
        tensor=tensor,
        splits=numbers,
        tensor_name=names.tensor_name,
        process_set_id=registered_id(process_set),
        name=names.node,
    )
    if numbers.shape.num_elements():  # not empty, which stands for equal ones
        received.set_shape(numbers.shape)  # tf.split and tf.unstack ask for it in a graph
    return output if splits is None else (output, received)


def _as_int32(splits: Any) -> tf.Tensor:
    splits = tf.convert_to_tensor(splits)
    if not splits.dtype.is_integer and splits.shape.num_elements() != 0:
        raise ValueError(f"splits has the dtype {splits.dtype.name}; pass integers")
    if splits.dtype.size > tf.int32.size or splits.dtype == tf.uint32:
        # What does not fit becomes the largest, which the kernel refuses.
        limits = [tf.constant(limit, splits.dtype) for limit in _limits_of(splits.dtype)]
        splits = tf.clip_by_value(splits, *limits)
    return tf.cast(splits, tf.int32)


def _limits_of(dtype: tf.DType) -> tuple[int, int]:
    return max(tf.int32.min, dtype.min), tf.int32.max


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_gradient(op: Any, gradient: Any, _received: Any) -> tuple[tf.Tensor, None]:
    """The rows' gradients go back to where the rows came from."""
    tensor = op.inputs[0]
    names = gradient_names(op)
    returned, _ = run_operation(
        native.ops.horovod_alltoall,
        # TensorFlow may fill in a missing gradient as float32 zeros.
        tensor=tf.cast(tf.convert_to_tensor(gradient), tensor.dtype),
        splits=op.outputs[1],
        tensor_name=names.tensor_name,
        name=names.node,
        process_set_id=op.get_attr("process_set_id"),
    )
    # Rows that went nowhere have no influence.
    unsent = tf.shape(tensor)[0] - tf.shape(returned)[0]
    rest = tf.zeros(tf.concat([[unsent], tf.shape(tensor)[1:]], 0), tensor.dtype)
    return shaped_as(tensor, tf.concat([returned, rest], 0)), None
