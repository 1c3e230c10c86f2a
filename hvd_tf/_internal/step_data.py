# SPDX-License-Identifier: Apache-2.0
"""Which operations of a graph read data, and collectives that wait for them.

A rank whose data ends in a step then sends nothing in that step. Else the step would be aborted on
the other ranks too, in the middle of their own batches.
"""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from hvd_tf._internal.compat import add_control_inputs, is_in_control_flow, v1
from hvd_tf._internal.names import GRADIENT_PREFIX

_READING_TYPES = ("IteratorGetNext", "QueueDequeue")


def data_of_step(used: Iterable[tf.Operation] = ()) -> list[tf.Operation]:
    """What reads the data of a training step in the current graph.

    Where several operations read, those that gradients, or the `used` operations, depend on. One
    alone may read what only another session run wants, such as a validation.
    """
    graph = v1.get_default_graph()
    reading = [operation for operation in graph.get_operations() if _reads(operation)]
    # Gradients of several passes are reduced within a branch.
    used = [*(_gradient_collectives() or _updates()), *used]
    if used or len(reading) > 1:
        reading = _data_of(used)
    return [operation for operation in reading if not is_in_control_flow(operation)]


def hold_back_gradients() -> None:
    """Let gradients that depend on no data wait for that of the others.

    Does nothing where the others read from several places: a step may be of some of these only.
    """
    collectives, data = _gradient_collectives(), data_of_step()
    if len(data) != 1:
        return
    # The order in which they were made is that of their dependencies, but for loops.
    dependent = set(data)
    for operation in v1.get_default_graph().get_operations():
        if not dependent.isdisjoint(_needs_of(operation)):
            dependent.add(operation)
    for collective in collectives:
        if collective not in dependent and not is_in_control_flow(collective):
            add_control_inputs(collective, data)


def _gradient_collectives() -> list[tf.Operation]:
    return [
        operation
        for operation in v1.get_default_graph().get_operations()
        if operation.type.startswith("Horovod")
        and operation.node_def.attr["tensor_name"].s.startswith(GRADIENT_PREFIX.encode())
    ]


def _updates() -> list[tf.Operation]:
    """The updates of all optimizers."""
    updates = v1.get_collection(v1.GraphKeys.TRAIN_OP)
    return [getattr(update, "op", update) for update in updates]


def _data_of(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """What they depend on and reads data, in the order of names."""
    found, seen, left = [], set(), list(operations)
    while left:
        operation = left.pop()
        if operation in seen:
            continue
        seen.add(operation)
        if _reads(operation):
            found.append(operation)
        else:
            left += _needs_of(operation)
    return sorted(found, key=lambda operation: operation.name)


def _reads(operation: tf.Operation) -> bool:
    return operation.type.startswith(_READING_TYPES)


def _needs_of(operation: tf.Operation) -> list[tf.Operation]:
    return [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
