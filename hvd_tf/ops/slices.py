# SPDX-License-Identifier: Apache-2.0
"""allreduce of tf.IndexedSlices: every rank's rows, gathered."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from hvd_tf._internal.op_names import Names, part_names
from hvd_tf._internal.runtime import Average, ProcessSet, Sum, global_process_set
from hvd_tf.ops.arguments import OP_NAMES, check_op, registered_id
from hvd_tf.ops.facts import size_op
from hvd_tf.ops.gathers import gather_all


def check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    """Refuses arguments that slices do not support, before anything is sent."""
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
    """`allreduce` of slices, for this library's own use. Names are as in `dense_allreduce`."""
    check_sparse(op, 1.0, 1.0)
    return reduce_slices([slices], op, process_set, Names(name, tensor_name))[0]


def reduce_slices(
    slices: list[tf.IndexedSlices],
    op: int,
    process_set: ProcessSet,
    names: Names,
) -> list[tf.IndexedSlices]:
    """Every rank's rows, in rank order. Code that applies them adds up duplicates.

    Averages of integers are true divisions, as with Horovod. Dtypes of 8 and 16 bits give float32.
    Wider ones give float64.

    Raises:
        ValueError: an average of bool; an unregistered process set.
    """
    values = [part.values for part in slices]
    averages = op == Average
    if averages:
        _check_averages(values)
        # This comes before the gather, so that each rank divides its own rows only.
        values = [
            _divided_by_size(value, process_set) if value.dtype.is_floating else value
            for value in values
        ]
    indices = [part.indices for part in slices]
    gathered_values = gather_all(values, part_names(names, "values"), process_set)
    if averages:
        # This comes after the gather, because quotients of integers take more bytes.
        gathered_values = [
            value if value.dtype.is_floating else _divided_by_size(value, process_set)
            for value in gathered_values
        ]
    gathered_indices = gather_all(indices, part_names(names, "indices"), process_set)
    return [
        tf.IndexedSlices(value, index, dense_shape=part.dense_shape)
        for value, index, part in zip(gathered_values, gathered_indices, slices)
    ]


def _check_averages(values: list[tf.Tensor]) -> None:
    for value in values:
        if value.dtype == tf.bool:
            raise ValueError(
                "op=hvd.Average cannot divide tf.IndexedSlices of bool: use hvd.Sum or cast them"
            )


def _divided_by_size(values: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    set_id = registered_id(process_set)
    size = process_set.size() if tf.executing_eagerly() else size_op(set_id)
    return tf.truediv(values, tf.cast(size, values.dtype))
