# SPDX-License-Identifier: Apache-2.0
"""join."""

from __future__ import annotations

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.graph_order import after_what_came_before
from hvd_tf._internal.op_names import check_place
from hvd_tf._internal.runtime import ProcessSet, global_process_set
from hvd_tf.ops.arguments import registered_id


def join(process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Says that this rank has no more tensors, and waits until every rank has said so.

    Until then the calls of the other ranks go on without this rank: sums, minima, maxima and
    products are those of the other ranks, and gathered rows come from them. An average is still
    divided by the size of the process set, as with Horovod, or by the number of ranks that still
    have tensors if HVD_JOIN_AVERAGE=active. What would be lost is an error on every rank that calls
    it: a broadcast from a rank that has joined, rows that alltoall sends to one, a reducescatter.

    In a tf.function it comes after the collectives, loops and branches before it in the same
    function, loop body or branch.

    A rank that waits in `join` is not late: no warning names it. One names the ranks that it waits
    for, where they have asked for nothing for HVD_STALL_WARNING_S.

    Args:
      process_set: the ranks that take part.

    Returns:
      int32 scalar: the rank that came last. It has the values of the last step.

    Raises:
      ValueError: an unregistered process set; XLA compiles what is being traced.
      tf.errors.InvalidArgumentError: this rank waits in a join already.
      tf.errors.UnknownError: a peer left, died or failed; or hvd was shut down.
    """
    check_place("join")
    set_id = registered_id(process_set)
    with after_what_came_before():
        return native.ops.horovod_join(process_set_id=set_id, name="join")


tf.no_gradient("HorovodJoin")
