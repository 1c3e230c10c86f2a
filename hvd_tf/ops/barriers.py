# SPDX-License-Identifier: Apache-2.0
"""barrier."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.eager_words import run_operation
from hvd_tf._internal.graph_order import after_what_came_before
from hvd_tf._internal.op_names import Names, call_names, check_place, unnamed
from hvd_tf._internal.runtime import ProcessSet, global_process_set
from hvd_tf.ops.arguments import registered_id


def barrier(
    process_set: ProcessSet = global_process_set, name: Optional[str] = None
) -> Optional[Any]:
    """Waits until every rank of a process set has come to it.

    Operations that this rank has started before may still be under way on others. In a tf.function
    it comes after the collectives, the operations with side effects, the loops and the branches
    before it in the same function, loop body or branch. Of what follows it only that waits which is
    made under `tf.control_dependencies([barrier])`.

    Args:
      process_set: the ranks that take part.
      name: by which the ranks match the call; as in `allreduce`.

    Returns:
      None in eager mode. In a graph, the operation that waits.

    Raises:
      ValueError: an unregistered process set; no name in a thread that needs one; XLA
        compiles what is being traced.
    """
    if name is not None:
        names = call_names("barrier", "HorovodBarrier", None, name, ignore_name_scope=False)
    elif tf.executing_eagerly():
        names = Names(None, f"{unnamed('barrier')}.eager")
    else:
        check_place("barrier")
        names = Names("barrier", "")  # TensorFlow numbers the nodes
    set_id = registered_id(process_set)
    with after_what_came_before():
        return run_operation(
            native.ops.horovod_barrier,
            tensor_name=names.tensor_name,
            process_set_id=set_id,
            name=names.node,
        )


tf.no_gradient("HorovodBarrier")
