# SPDX-License-Identifier: Apache-2.0
"""Broadcasting variables."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import (
    Variable,
    devices_of,
    is_replicated,
    is_resource_variable,
    parts_of,
    tf_variable,
    v1,
)
from hvd_tf._internal.features import has_gpu_lane
from hvd_tf._internal.names import (
    BROADCAST_PREFIX,
    difference_of,
    names_of_root,
    variable_names,
)
from hvd_tf._internal.objects import allgather_object
from hvd_tf._internal.runtime import ProcessSet, global_process_set, rank

# The tensors by which ranks compare the names of their variables.
_NAMES = "broadcast_variables/names"

_BROADCAST_DTYPES = frozenset(
    {
        *(tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool),
    }
)


def broadcast_variables(
    variables: Sequence[Variable],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Optional[tf.Operation]:
    """Gives every rank of the set the root's values of these variables.

    Args:
      variables: TensorFlow or Keras variables of any shapes and mixed dtypes. The ranks' variables
        are matched by name (and by position where names repeat) and must agree in dtype and shape.
        In eager code a name may lack the first scope that it has on other ranks: so do an
        optimizer's, where one rank has loaded it.
      root_rank: rank in the job (not within the process set) whose values are taken.
      process_set: the ranks that take part.
      inplace: in a graph, let one stateful operation for each device read, receive and store the
        variables, instead of three for each variable. On a GPU there is one for each dtype, and
        with HVD_GPU_LANE=0 none. Eager code always does so where the variables are on the CPU,
        or on one GPU without HVD_GPU_LANE=0. The values are the same.

    Returns:
      In a graph, an operation to run once after the variables are initialised; in eager
      code None, when it is done.

    Raises:
      ValueError: for what is no variable or has a dtype that cannot be broadcast, or before
        `init`; in eager code on every rank, where one has variables that the root lacks, or lacks
        some.
      tf.errors.FailedPreconditionError: on every rank, where dtype, shape or root differ.
    """
    # By identity, which costs the least: Python is a third of an eager call for 200 variables.
    variables = list({id(v): v for v in map(tf_variable, variables)}.values())
    try:
        of_dtypes = {id(v.dtype): v for v in reversed(variables)}  # the first of each
    except AttributeError:
        raise _no_variable(variables) from None
    for variable in of_dtypes.values():
        _check_dtype(variable)
    size = process_set.size()
    if tf.executing_eagerly():
        if size != 1:
            _broadcast_eagerly(variables, root_rank, process_set, inplace)
        return None
    if size == 1:
        return tf.no_op(name="broadcast_variables")
    variables = list({id(part): part for v in variables for part in parts_of(v)}.values())
    names = variable_names(variables)
    return _broadcast_op(variables, names, root_rank, process_set, inplace)


def _broadcast_eagerly(
    variables: list[Variable], root_rank: int, process_set: ProcessSet, inplace: bool
) -> None:
    names = _agreed_names(variables, root_rank, process_set)
    if not variables:
        return
    # All of them go one way. If some went each way, ranks that divide them differently would
    # wait for each other.
    device = _device_of_all(variables)
    if device:
        with tf.device(device):
            ops.broadcast_each(variables, _prefixed(names), root_rank, process_set)
        return

    @tf.function(autograph=False)
    def together() -> None:  # in one graph all are under way at once
        _broadcast_op(variables, names, root_rank, process_set, inplace)

    together.get_concrete_function()()  # a graph also where functions run eagerly


def _agreed_names(variables: list[Variable], root_rank: int, process_set: ProcessSet) -> list[str]:
    """The names by which the ranks match these variables: the root's.

    Raises ValueError on every rank if some have variables that the root lacks, or lack some.
    """
    names = variable_names(variables)
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).digest()
    with tf.device("CPU"):
        row = tf.constant([list(digest)], tf.uint8)
        digests = ops.allgather(row, f"{_NAMES}/digest", True, process_set).numpy()
    if (digests == digests[0]).all():
        return names
    lists = dict(allgather_object((rank(), names), name=_NAMES, process_set=process_set))
    if root_rank not in lists:
        return names  # it has joined, or is no member: the broadcast says so
    of_root = lists[root_rank]
    agreed = {of: names_of_root(theirs, of_root) for of, theirs in lists.items()}
    differences = [
        f"rank {of}: {difference_of(set(theirs), set(of_root))}"
        for of, theirs in agreed.items()
        if set(theirs) != set(of_root)
    ]
    if differences:
        raise ValueError(
            f"broadcast_variables: the variables differ from those of rank {root_rank}; every rank "
            f"must pass the same ones, which exist already. {'; '.join(differences)}"
        )
    return agreed[rank()]


def _device_of_all(variables: list[Variable]) -> str:
    """Where one kernel can broadcast all of them at once in eager code. Empty: nowhere."""
    if any(map(is_replicated, variables)):
        return ""
    devices = devices_of(variables)
    if devices and all("device:CPU" in device for device in devices):
        return "CPU"
    if len(devices) == 1 and "device:GPU" in min(devices) and has_gpu_lane():
        return min(devices)
    return ""


def _broadcast_op(
    variables: list[Variable],
    names: list[str],
    root_rank: int,
    process_set: ProcessSet,
    inplace: bool,
) -> tf.Operation:
    # Those of one kernel. TensorFlow has no variables of some dtypes on a GPU, and one of these
    # would keep all others on the CPU. So would one with another operation that GPUs have not,
    # where TensorFlow chooses the device.
    resources: dict[tuple[str, Any], list[tuple[Variable, str]]] = {}
    updates = []
    for variable, name in zip(variables, _prefixed(names)):
        if not inplace or not ops.fit_one_kernel([variable]):
            value = _value(variable)  # read where the variable is
            with tf.device(_device_of_values()):
                value = ops.broadcast(
                    value,
                    root_rank,
                    name=name,
                    ignore_name_scope=True,
                    process_set=process_set,
                )
            updates.append(variable.assign(value))
        elif is_resource_variable(variable):
            device = str(variable.device)
            alike: Any = None if "device:CPU" in device else variable.dtype
            if "device:" not in device and has_gpu_lane():
                alike = name
            resources.setdefault((device, alike), []).append((variable, name))
        else:
            updates += ops.broadcast_([variable], root_rank, name=name, process_set=process_set)
    for together in resources.values():
        of_device, their_names = map(list, zip(*together))
        updates.append(ops.broadcast_each(of_device, their_names, root_rank, process_set))
    return tf.group(*updates, name="broadcast_variables")


def _device_of_values() -> str:
    """The device that the caller has chosen, or the host. GPUs may lack room for all twice."""
    chosen = str(tf.no_op().device)
    return chosen if "device:" in chosen else "CPU"


def _prefixed(names: list[str]) -> list[str]:
    return [BROADCAST_PREFIX + name for name in names]


def _value(variable: Variable) -> tf.Tensor:
    return variable.read_value() if is_resource_variable(variable) else variable.value()


def _check_dtype(variable: Variable) -> None:
    dtype = variable.dtype.base_dtype
    if dtype not in _BROADCAST_DTYPES:
        raise ValueError(
            f"the variable '{variable.name}' has dtype {dtype.name}, which cannot be broadcast: "
            "pass the variables without it and set it to the same value on every rank"
        )


def _no_variable(variables: list[Any]) -> ValueError:
    """What one without a dtype is, such as a vocabulary that Keras 2 lists among the variables."""
    other = next(v for v in variables if not hasattr(v, "dtype"))
    return ValueError(
        f"'{type(other).__name__}' is no variable, and cannot be broadcast: pass the variables "
        "without it, and give every rank the same (a vocabulary, as TextVectorization has it, by "
        "adapting on the same data)"
    )


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """An operation that gives every rank the root's values of all global variables.

    For graphs. Raises RuntimeError in eager code, which has no collection of variables: there,
    `broadcast_variables` takes a list.
    """
    if v1.executing_eagerly_outside_functions():
        raise RuntimeError(
            "broadcast_global_variables needs a graph of TF 1, whose collections know all "
            "variables: in eager code call broadcast_variables(variables, root_rank)"
        )
    return broadcast_variables(v1.global_variables(), root_rank)
