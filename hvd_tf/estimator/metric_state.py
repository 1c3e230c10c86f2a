# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a metric of an evaluation graph can be summed over ranks.

A metric keeps its state in variables. An update changes them with each batch. Suppose that every
update only adds to them, and that what it adds depends on the batch and the model alone. Then the
state after all batches is the initial state plus the sum of what each batch adds, whichever rank
has seen which batch. So the ranks' states can be added up. Mean, accuracy, precision, recall, AUC
and confusion matrices of tf.compat.v1.metrics are such metrics. So is a user's own metric that is
built the same way. The graph decides, not the metric's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from hvd_tf._internal.compat import v1

# A metric as in EstimatorSpec.eval_metric_ops: its value, and the update of its state.
MetricOps = tuple[Any, Any]

_ADDITIONS = {
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "ResourceScatterAdd",
    "ResourceScatterSub",
    "AssignAdd",
    "AssignSub",
    "ScatterAdd",
    "ScatterSub",
}
# Operations that may also use the handle of a variable.
_READS = {"ReadVariableOp", "ResourceGather", "VarIsInitializedOp", "VariableShape"}
_RESOURCE = "VarHandleOp"
_VARIABLES = {_RESOURCE, "VariableV2", "Variable"}
_SUMMED_TYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


class NotAdditiveError(Exception):
    """Why a metric cannot be summed. The text follows "because"."""


def state_of(metric: MetricOps) -> list[tf.Variable]:
    """The variables that hold a metric's state, in the order of their names.

    Raises NotAdditiveError if the ranks' states cannot be added up.
    """
    value, update = metric
    _check_value(_operations(value))
    ancestors = _ancestors([*_operations(value), *_operations(update)])
    writers = {
        handle: [
            user for user in _users(handle) if user in ancestors and not _only_reads(handle, user)
        ]
        for handle in ancestors
        if handle.type in _VARIABLES
    }
    state = {handle for handle, users in writers.items() if users}
    for handle in state:
        for writer in writers[handle]:
            _check_writer(handle, writer, state)
    return sorted((_variable(handle) for handle in state), key=lambda variable: variable.name)


def states_of(metrics: Mapping[str, MetricOps]) -> tuple[list[tf.Variable], dict[str, str]]:
    """The state of all metrics, each variable once. Also name and reason of those without."""
    variables: dict[str, tf.Variable] = {}
    reasons = {}
    for name, metric in sorted(metrics.items()):
        try:
            variables.update((variable.name, variable) for variable in state_of(metric))
        except NotAdditiveError as error:
            reasons[name] = str(error)
    return [variables[name] for name in sorted(variables)], reasons


def operations_of(fetches: Any) -> set[tf.Operation]:
    """All that a session run of these tensors and operations needs."""
    return _ancestors(_operations(fetches))


def _check_value(roots: Iterable[tf.Operation]) -> None:
    """Raises NotAdditiveError if the value depends on more than variables, such as on a batch."""
    for op in _ancestors(roots, control=False):
        if op.type.startswith("Placeholder") or (
            op.op_def.is_stateful and op.type not in _VARIABLES | _READS
        ):
            raise NotAdditiveError(f"its value does not come from variables alone: {op.name!r}")


def _check_writer(handle: tf.Operation, writer: tf.Operation, state: set[tf.Operation]) -> None:
    """Raises NotAdditiveError unless it adds something that does not depend on the state."""
    if writer.type not in _ADDITIONS:
        raise NotAdditiveError(
            f"its update does not add to its variable {handle.name!r}: {writer.type} "
            f"{writer.name!r}"
        )
    added = [tensor.op for tensor in writer.inputs[1:]]
    used = next((op for op in _ancestors(added, control=False) if op in state), None)
    if used is not None:
        raise NotAdditiveError(
            f"what its update adds to its variable {handle.name!r} depends on {used.name!r}, "
            "which it updates too"
        )
    dtype = _variable(handle).dtype.base_dtype
    if dtype not in _SUMMED_TYPES:
        raise NotAdditiveError(f"its variable {handle.name!r} is of dtype {dtype.name}")


def _only_reads(handle: tf.Operation, user: tf.Operation) -> bool:
    if handle.type == _RESOURCE:
        return user.type in _READS
    # For a reference variable of TF 1, all other operations get a copy of the value.
    return user.type == "IsVariableInitialized" or not any(
        argument.is_ref for argument in user.op_def.input_arg
    )


def _users(handle: tf.Operation) -> set[tf.Operation]:
    """The operations that use a variable, also through the reference that TF 1 assigns return."""
    found: set[tf.Operation] = set()
    left = list(handle.outputs)
    while left:
        for user in left.pop().consumers():
            if user not in found:
                found.add(user)
                left += [out for out in user.outputs if out.dtype != out.dtype.base_dtype]
    return found


def _ancestors(roots: Iterable[tf.Operation], control: bool = True) -> set[tf.Operation]:
    """These operations and all that they need. `control`: also those that must run before."""
    found: set[tf.Operation] = set()
    left = list(roots)
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left.extend(tensor.op for tensor in op.inputs)
            if control:
                left.extend(op.control_inputs)
    return found


def _operations(fetches: Any) -> list[tf.Operation]:
    """The operations of a tensor, operation, variable or structure of these."""
    return [
        item if isinstance(item, tf.Operation) else _tensor(item).op
        for item in tf.nest.flatten(fetches, expand_composites=True)
    ]


def _tensor(item: Any) -> tf.Tensor:
    return item if isinstance(item, tf.Tensor) else tf.convert_to_tensor(item)


def _variable(handle: tf.Operation) -> tf.Variable:
    collections = (v1.GraphKeys.METRIC_VARIABLES, v1.GraphKeys.LOCAL_VARIABLES)
    for variable in [v for name in collections for v in v1.get_collection(name)]:
        if variable.op is handle:
            return variable
    raise NotAdditiveError(
        f"it updates the variable {handle.name!r}, which is no local variable of the graph"
    )
