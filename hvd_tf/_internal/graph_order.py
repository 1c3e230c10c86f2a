# SPDX-License-Identifier: Apache-2.0
"""What a call in a tf.function must wait for, because TensorFlow does not know that it must.

TensorFlow runs the stateful operations of a function in the order of the program, but by the
resource that they touch: one without any does not wait for variables. Nor does it wait for
collectives, which are stateless so that they run side by side.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf


def after_what_came_before() -> AbstractContextManager[Any]:
    """In the block, operations wait for what the function has had by now.

    That is its collectives, what has side effects, and loops, branches and calls, which may have
    either. Graphs of TF 1 are left alone: what they run is up to each session.
    """
    graph = tf.compat.v1.get_default_graph()
    if tf.executing_eagerly() or not graph.building_function:
        return nullcontext()
    return tf.control_dependencies([one for one in graph.get_operations() if _counts(one)])


def _counts(operation: tf.Operation) -> bool:
    definition = operation.op_def
    if operation.type in ("Placeholder", "VarHandleOp"):  # they do nothing
        return False
    return (
        operation.type.startswith("Horovod")
        or definition.is_stateful
        or any(attr.type in ("func", "list(func)") for attr in definition.attr)
    )
