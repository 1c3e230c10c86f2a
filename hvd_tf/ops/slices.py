# SPDX-License-Identifier: Apache-2.0
"""allreduce of tf.IndexedSlices: every rank's rows, gathered."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from hvd_tf.op_names import Names, part_names
from hvd_tf.ops.arguments import OP_NAMES, check_op, registered_id
from hvd_tf.ops.facts import size_op
from hvd_tf.ops.gathers import gather_all
from hvd_tf.runtime import Average, ProcessSet, Sum, global_process_set


def check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    """Refuses what slices cannot do, before anything is sent."""
    check_op(op)
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"op={OP_NAMES[op]} cannot reduce tf.IndexedSlices, whose rows are added up later; use "
            "hvd.Average or hvd.Sum, or tf.convert_to_tensor first"
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor cannot scale tf.IndexedSlices; scale their values"
        )


def sparse_allreduce(
    slices: tf.IndexedSlices,
    *,
    op: int,
    process_set: ProcessSet = global_process_set,
    tensor_name: str = "",
    name: Optional[str] = None,
) -> tf.IndexedSlices:
    """`allreduce` of slices for this library's own use; names as in `dense_allreduce`."""
    check_sparse(op, 1.0, 1.0)
    return reduce_slices([slices], op, process_set, (name, tensor_name))[0]


def reduce_slices(
    slices: list[tf.IndexedSlices],
    op: int,
    process_set: ProcessSet,
    names: Names,
) -> list[tf.IndexedSlices]:
    """Every rank's rows, in rank order: duplicates are added up by whoever applies them."""
    values = [part.values for part in slices]
    if op == Average:
        # Before the gather: each rank divides its own rows only.
        values = [_divided_by_size(value, process_set) for value in values]
    indices = [part.indices for part in slices]
    gathered_values = gather_all(values, part_names(names, "values"), process_set)
    gathered_indices = gather_all(indices, part_names(names, "indices"), process_set)
    return [
        tf.IndexedSlices(value, index, dense_shape=part.dense_shape)
        for value, index, part in zip(gathered_values, gathered_indices, slices)
    ]


def _divided_by_size(values: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    registered_id(process_set)
    eager = tf.executing_eagerly()
    size = process_set.size() if eager else size_op(process_set.process_set_id)
    divisor = tf.cast(size, values.dtype)
    return values / divisor if values.dtype.is_floating else tf.truncatediv(values, divisor)
