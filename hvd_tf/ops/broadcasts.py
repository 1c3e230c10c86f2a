# SPDX-License-Identifier: Apache-2.0
"""broadcast with its gradient, and functions that broadcast variables in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.compat import is_replicated, parts_of, tf_variable
from hvd_tf._internal.eager_words import run_operation
from hvd_tf._internal.features import has_gpu_lane
from hvd_tf._internal.op_names import Names, call_names, gradient_names, part_names
from hvd_tf._internal.runtime import Average, ProcessSet, global_process_set
from hvd_tf.ops.arguments import by_dtype, registered_id
from hvd_tf.ops.facts import rank_op


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives every rank the root's tensor.

    Args:
      tensor: what tf.convert_to_tensor accepts; the same shape and dtype on every rank.
      root_rank: the rank whose values are sent. It is a rank of the job, also with a process set.
      name: as in `allreduce`.
      ignore_name_scope: as in `allreduce`.
      process_set: as in `allreduce`.

    Returns:
      A tensor of the input's shape and dtype.
    """
    tensor = tf.convert_to_tensor(tensor)
    names = call_names("broadcast", "HorovodBroadcast", tensor, name, ignore_name_scope)
    return run_operation(
        native.ops.horovod_broadcast,
        tensor=tensor,
        root_rank=root_rank,
        tensor_name=names.tensor_name,
        process_set_id=registered_id(process_set),
        name=names.node,
    )


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """The average of the upstream gradients on the root, zeros elsewhere."""
    names = gradient_names(op)
    average = run_operation(
        native.ops.horovod_allreduce,
        tensor=tf.convert_to_tensor(gradient),
        reduce_op=Average,
        tensor_name=names.tensor_name,
        name=names.node,
        process_set_id=op.get_attr("process_set_id"),
    )
    # A factor 0 would make NaN of an infinite gradient. It is decided when the graph runs, because
    # TensorFlow would remove an allreduce if it knew that the result does not matter.
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return tf.where(is_root, average, tf.zeros_like(average))


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gives variables the values that they have on the root.

    Args:
      variables: initialised variables of TensorFlow or Keras, either all resource variables or
        all reference variables. Shapes, dtypes and order must be the same on every rank, and
        so must be whether they are on a GPU: with HVD_GPU_LANE=0 each is a collective of its
        own there.
      root_rank: as in `broadcast`.
      name: as in `allreduce`.
      process_set: as in `allreduce`.

    Returns:
      The new values, in order. In place of a variable that a partitioner of TF 1 has cut, those of
      its parts.

    Raises:
      ValueError: resource and reference variables are mixed.
    """
    variables = [part for variable in variables for part in parts_of(tf_variable(variable))]
    if not variables:
        return []
    resource = [hasattr(variable, "handle") for variable in variables]
    if any(resource) and not all(resource):
        raise ValueError(
            "broadcast_ takes resource variables or reference variables, not both in one call"
        )
    run = _broadcast_resources if resource[0] else _broadcast_references
    if not fit_one_kernel(variables):
        run = _broadcast_values
    return run(variables, root_rank, name, registered_id(process_set))


def fit_one_kernel(variables: Sequence[Any]) -> bool:
    """Whether a kernel can hold these variables, and keeps none from the device that it is for."""
    if any(map(is_replicated, variables)):
        return False
    devices = {str(variable.device) for variable in variables}
    unknown = {device for device in devices if "device:" not in device}
    if has_gpu_lane():
        return len(devices) == 1
    if not all("device:CPU" in device for device in devices - unknown):
        return False
    # Where a graph leaves it to TensorFlow, that takes a GPU. The kernel would make it a CPU.
    return not unknown or not tf.config.get_visible_devices("GPU")


def broadcast_each(
    variables: Sequence[Any],
    names: Sequence[str],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> Optional[tf.Operation]:
    """Gives resource variables on one device the values that they have on the root, in one kernel.

    Unlike in `broadcast_`, each is a collective of its own. So ranks may list them in any order.

    Args:
      variables: initialised resource variables of any dtypes.
      names: one for each variable. The ranks match the variables by it.
      root_rank, process_set: as in `broadcast`.

    Returns:
      In a graph, the operation. In eager code, None, after it is done.
    """
    return native.ops.horovod_broadcast_variables(
        resources=[variable.handle for variable in variables],
        root_rank=root_rank,
        tensor_names=list(names),
        process_set_id=registered_id(process_set),
        name="broadcast_each",
    )


def _broadcast_resources(
    variables: list[Any], root_rank: int, name: Optional[str], set_id: int
) -> list[tf.Tensor]:
    names = call_names("broadcast_", "HorovodBroadcastInplace", variables[0], name, False)

    def run(part: list[Any], part_name: Names) -> list[tf.Tensor]:
        done = run_operation(
            native.ops.horovod_broadcast_inplace_resource,
            resources=[variable.handle for variable in part],
            T=part[0].dtype,
            root_rank=root_rank,
            tensor_name=part_name.tensor_name,
            process_set_id=set_id,
            name=part_name.node,
        )
        with tf.control_dependencies([done] if done is not None else []):
            return [variable.read_value() for variable in part]

    return by_dtype(variables, names, run)


def _broadcast_values(
    variables: list[Any], root_rank: int, name: Optional[str], set_id: int
) -> list[tf.Tensor]:
    names = call_names("broadcast_", "HorovodBroadcastInplace", variables[0], name, False)

    def run(variable: Any, part_name: Names) -> tf.Tensor:
        value = run_operation(
            native.ops.horovod_broadcast,
            tensor=tf.convert_to_tensor(variable),
            root_rank=root_rank,
            tensor_name=part_name.tensor_name,
            process_set_id=set_id,
            name=part_name.node,
        )
        done = variable.assign(value, read_value=False)
        with tf.control_dependencies([done] if done is not None else []):
            return variable.read_value()

    if len(variables) == 1:
        return [run(variables[0], names)]
    return [run(variable, part_names(names, str(i))) for i, variable in enumerate(variables)]


def _broadcast_references(
    variables: list[Any], root_rank: int, name: Optional[str], set_id: int
) -> list[tf.Tensor]:
    names = call_names("broadcast_", "HorovodBroadcastInplace", variables[0], name, False)

    def run(part: list[Any], part_name: Names) -> list[tf.Tensor]:
        references = run_operation(
            native.ops.horovod_broadcast_inplace,
            variables=[variable._ref() for variable in part],
            root_rank=root_rank,
            tensor_name=part_name.tensor_name,
            process_set_id=set_id,
            name=part_name.node,
        )
        return [tf.identity(reference) for reference in references]

    return by_dtype(variables, names, run)
