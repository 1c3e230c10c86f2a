# SPDX-License-Identifier: Apache-2.0
"""The verbs: allreduce, allgather, broadcast, alltoall, reducescatter, barrier, join.

Every rank of the process set must make the same calls, in any order. A mistake fails the call on
every rank. The message has every rank's value:

    tf.errors.FailedPreconditionError: the ranks disagree, or hvd is not initialised.
    tf.errors.InvalidArgumentError: one rank's call is invalid; a dtype that cannot be sent.
    tf.errors.UnknownError: a peer left, died or failed; or hvd was shut down.

allreduce and reducescatter take uint8, int8, int32, int64, float16, bfloat16, float32 and float64.
The others take uint16, int16 and bool too.
"""

from hvd_tf.ops.arguments import handle_average_backwards_compatibility
from hvd_tf.ops.barriers import barrier
from hvd_tf.ops.broadcasts import broadcast, broadcast_, broadcast_each, fit_one_kernel
from hvd_tf.ops.exchanges import alltoall
from hvd_tf.ops.facts import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from hvd_tf.ops.gathers import allgather, grouped_allgather
from hvd_tf.ops.joins import join
from hvd_tf.ops.reductions import allreduce, dense_allreduce, grouped_allreduce
from hvd_tf.ops.scatters import grouped_reducescatter, reducescatter
from hvd_tf.ops.slices import sparse_allreduce

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_each",
    "dense_allreduce",
    "fit_one_kernel",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
    "sparse_allreduce",
]
