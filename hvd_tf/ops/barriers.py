# SPDX-License-Identifier: Apache-2.0
"""barrier."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.op_names import Names, call_names, unnamed
from hvd_tf._internal.runtime import ProcessSet, global_process_set
from hvd_tf.ops.arguments import registered_id


def barrier(
    process_set: ProcessSet = global_process_set, name: Optional[str] = None
) -> Optional[Any]:
    """Waits until every rank of a process set has come to it.

    It orders nothing but itself: operations that this rank has started before may still be under
    way on others.

    Args:
        process_set: the ranks that take part.
        name: by which the ranks match the call; as in `allreduce`.

    Returns:
        None in eager mode. In a graph, the operation that waits. In a tf.function TensorFlow runs
        it in the order of the program, beside other operations with side effects.

    Raises:
        ValueError: an unregistered process set; no name in a thread that needs one.
    """
    if name is not None:
        names = call_names("barrier", "HorovodBarrier", None, name, ignore_name_scope=False)
    elif tf.executing_eagerly():
        names = Names(None, f"{unnamed('barrier')}.eager")
    else:
        names = Names(None, "")  # TensorFlow numbers the nodes
    return native.ops.horovod_barrier(
        tensor_name=names.tensor_name,
        process_set_id=registered_id(process_set),
        name=names.node,
    )


tf.no_gradient("HorovodBarrier")
