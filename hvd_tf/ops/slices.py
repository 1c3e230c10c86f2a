# SPDX-License-Identifier: Apache-2.0
"""allreduce of tf.IndexedSlices, with its gradient: rows of equal index are added up."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.eager_words import run_operation
from hvd_tf._internal.op_names import Names, gradient_names, part_names
from hvd_tf._internal.runtime import Average, ProcessSet, Sum, global_process_set
from hvd_tf.compression import Compression, wire_dtype_for
from hvd_tf.ops.arguments import OP_NAMES, check_op
from hvd_tf.ops.facts import size_op
from hvd_tf.ops.gathers import gather_all
from hvd_tf.ops.reducing import Reduction

# What rows of these types add up to would wrap around or is not defined. They stay as they are.
_ONLY_GATHERED = (tf.bool, tf.int16, tf.uint16)


def check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    """Refuses arguments that slices do not support, before anything is sent."""
    check_op(op)
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"op={OP_NAMES[op]} cannot reduce tf.IndexedSlices, whose rows are added up; use "
            "hvd.Average or hvd.Sum, tf.convert_to_tensor, or the optimizer's or the tape's "
            "sparse_as_dense=True"
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor cannot scale tf.IndexedSlices; scale their values"
        )


def sparse_allreduce(
    slices: tf.IndexedSlices,
    *,
    op: int,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
    tensor_name: str = "",
    name: Optional[str] = None,
) -> tf.IndexedSlices:
    """`allreduce` of slices, for this library's own use. Names are as in `dense_allreduce`."""
    check_sparse(op, 1.0, 1.0)
    return reduce_slices([slices], op, process_set, Names(name, tensor_name), compression)[0]


def reduce_slices(
    slices: list[tf.IndexedSlices],
    op: int,
    process_set: ProcessSet,
    names: Names,
    compression: Any = Compression.none,
) -> list[tf.IndexedSlices]:
    """One row for each index of any rank: the sum or the average of all its rows.

    Indices are ascending. Slices that travel together make one operation for each pair of dtypes.
    Values travel in the compression's `wire_dtype`, after this rank's rows are added up. A
    compressor without one, of a user's own, is not called.

    Averages of integers are true divisions, as with Horovod. Dtypes of 8 and 16 bits give float32.
    Wider ones give float64. Sums of bool, int16 and uint16 are every rank's rows, in rank order.

    Raises:
      ValueError: an average of bool; an unregistered process set.
    """
    slices = [of_tensors(part) for part in slices]
    wires = [wire_dtype_for(compression, part.values.dtype) for part in slices]
    if op == Average:
        _check_averages([part.values for part in slices])
        slices = [_divisible(part) for part in slices]
    places: dict[tuple[tf.DType, tf.DType, Optional[tf.DType]], list[int]] = {}
    for i, part in enumerate(slices):
        places.setdefault((part.values.dtype, part.indices.dtype, wires[i]), []).append(i)
    results: list[Any] = [None] * len(slices)
    for (dtype, index_dtype, wire), indices in places.items():
        name = f"{dtype.name}_{index_dtype.name}" + (f"_as_{wire.name}" if wire else "")
        own_names = names if len(places) == 1 else part_names(names, name)
        own = [slices[i] for i in indices]
        if dtype in _ONLY_GATHERED:
            reduced = _gathered(own, process_set, own_names)
        else:
            attributes = Reduction(op, 1.0, 1.0, process_set).attributes(wire, own_names)
            reduced = _reduced(own, attributes)
        for i, result in zip(indices, reduced):
            results[i] = result
    return results


def _reduced(slices: list[tf.IndexedSlices], attributes: dict[str, Any]) -> list[tf.IndexedSlices]:
    unknown = tf.zeros([0], tf.int64)
    sums, indices = run_operation(
        native.ops.horovod_sparse_allreduce,
        values=[part.values for part in slices],
        indices=[part.indices for part in slices],
        dense_shapes=[
            unknown if part.dense_shape is None else tf.cast(part.dense_shape, tf.int64)
            for part in slices
        ],
        **attributes,
    )
    return [
        tf.IndexedSlices(rows, index, dense_shape=part.dense_shape)
        for rows, index, part in zip(sums, indices, slices)
    ]


def _gathered(
    slices: list[tf.IndexedSlices], process_set: ProcessSet, names: Names
) -> list[tf.IndexedSlices]:
    """Every rank's rows, in rank order. Code that applies them adds up duplicates."""
    values = gather_all([part.values for part in slices], part_names(names, "values"), process_set)
    indices = gather_all(
        [part.indices for part in slices], part_names(names, "indices"), process_set
    )
    return [
        tf.IndexedSlices(value, index, dense_shape=part.dense_shape)
        for value, index, part in zip(values, indices, slices)
    ]


def of_tensors(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same. Their makers may have given lists."""
    return tf.IndexedSlices(
        tf.convert_to_tensor(slices.values),
        tf.convert_to_tensor(slices.indices),
        None if slices.dense_shape is None else tf.convert_to_tensor(slices.dense_shape),
    )


def _check_averages(values: list[tf.Tensor]) -> None:
    for value in values:
        if value.dtype == tf.bool:
            raise ValueError(
                "op=hvd.Average cannot divide tf.IndexedSlices of bool: use hvd.Sum or cast them"
            )


def _divisible(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The slices in the dtype that tf.truediv gives."""
    dtype = slices.values.dtype
    if not dtype.is_integer:  # complex values are refused as those of a dense tensor
        return slices
    values = tf.cast(slices.values, tf.float32 if dtype.size <= 2 else tf.float64)
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


@tf.RegisterGradient("HorovodSparseAllreduce")
def _sparse_allreduce_gradient(op: Any, *gradients: Any) -> list[Optional[tf.Tensor]]:
    """The average of the upstream gradients of each row's sum, as for an allgather of the rows.

    An average of rows has that, divided by the ranks.
    """
    count = op.get_attr("num_tensors")
    set_id = op.get_attr("process_set_id")
    averages = op.get_attr("reduce_op") == Average
    results = []
    for i, gradient in enumerate(gradients[:count]):
        values, indices, united = op.inputs[i], op.inputs[count + i], op.outputs[count + i]
        names = gradient_names(op, f".{i}")
        average = run_operation(
            native.ops.horovod_allreduce,
            # TensorFlow may fill in a missing gradient as float32 zeros.
            tensor=tf.cast(tf.convert_to_tensor(gradient), values.dtype),
            reduce_op=Average,
            wire_dtype=tf.compat.as_str(op.get_attr("wire_dtype")),
            tensor_name=names.tensor_name,
            name=names.node,
            process_set_id=set_id,
        )
        if averages:
            average /= tf.cast(size_op(set_id), average.dtype)
        results.append(tf.gather(average, tf.searchsorted(united, indices)))
    return [*results, *[None] * (2 * count)]
