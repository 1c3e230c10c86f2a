# SPDX-License-Identifier: Apache-2.0
"""allreduce and grouped_allreduce, each followed by its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.eager_words import run_operation, word_of
from hvd_tf._internal.op_names import Names, call_names, gradient_names
from hvd_tf._internal.runtime import ProcessSet, global_process_set
from hvd_tf.compression import Compression
from hvd_tf.ops.arguments import check_op, handle_average_backwards_compatibility, on_device
from hvd_tf.ops.reducing import Reduction, reduce_group, reduce_one
from hvd_tf.ops.slices import check_sparse, of_tensors, reduce_slices

TensorOrSlices = Union[tf.Tensor, tf.IndexedSlices]


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> TensorOrSlices:
    """Reduces a tensor over the ranks of a process set.

    Args:
      tensor: what tf.convert_to_tensor accepts, or tf.IndexedSlices; the same shape and dtype on
        every rank. Of slices the result has a row for each index of any rank, ascending.
      average: deprecated. True is op=Average, False is op=Sum.
      device_dense: where the operation is placed for a tensor, such as "/cpu:0".
      device_sparse: the same for tf.IndexedSlices.
      compression: what a floating tensor, or the values of slices, are cast to on the wire. A
        compressor of your own is not called for slices.
      op: Average (the default), Sum, Adasum, Min, Max or Product. An integer average is
        truncated. Adasum is for floating tensors. It weighs each tensor as a whole.
      prescale_factor: multiplies each input.
      postscale_factor: multiplies the result.
      name: by which the ranks match the call. The default is the node's name in a graph, and a
        number that counts calls in eager code. Eager calls outside the main thread and the one
        that called `init` need it. See docs/sharp_bits.md.
      process_set: the ranks that take part.
      ignore_name_scope: match by `name` alone, whatever the name scope.

    Returns:
      A tensor of the input's shape and dtype, the same on every rank.

    Raises:
      ValueError: op and average are both given; an unknown op; an unregistered process set; no
        name in a thread that needs one; XLA compiles what is being traced.
      NotImplementedError: slices with another op than Average and Sum, or scaled.
      tf.errors.InvalidArgumentError: Adasum of integers.
    """
    op = handle_average_backwards_compatibility(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        check_sparse(op, prescale_factor, postscale_factor)
        with on_device(device_sparse):
            slices = of_tensors(tensor)
            names = call_names(
                "allreduce", "HorovodSparseAllreduce", slices.values, name, ignore_name_scope
            )
            return reduce_slices([slices], op, process_set, names, compression)[0]
    with on_device(device_dense):
        tensor = tf.convert_to_tensor(tensor)
        names = call_names("allreduce", "HorovodAllreduce", tensor, name, ignore_name_scope)
        reduction = Reduction(op, prescale_factor, postscale_factor, process_set)
        return reduce_one(native.ops.horovod_allreduce, reduction, tensor, compression, names)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> list[TensorOrSlices]:
    """Reduces several tensors that are agreed on, travel and fail as one per dtype.

    Args and errors are `allreduce`'s, but for `tensors`: a list of tensors and tf.IndexedSlices,
    in the same order on every rank.

    Returns:
      The results in the order of `tensors`. An empty list is returned as it is.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    tensors = list(tensors)  # it may be the values of a dict
    op = handle_average_backwards_compatibility(op, average)
    check_op(op)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if sparse:
        check_sparse(op, prescale_factor, postscale_factor)
    results: list[Any] = [None] * len(tensors)
    if sparse:
        with on_device(device_sparse):
            slices = [of_tensors(tensors[i]) for i in sparse]
            names = call_names(
                "grouped_allreduce",
                "HorovodSparseAllreduce",
                slices[0].values,
                name,
                ignore_name_scope,
            )
            reduced_slices = reduce_slices(slices, op, process_set, names, compression)
            for i, reduced in zip(sparse, reduced_slices):
                results[i] = reduced
    if dense:
        with on_device(device_dense):
            inputs = [tf.convert_to_tensor(tensors[i]) for i in dense]
            names = call_names(
                "grouped_allreduce", "HorovodGroupedAllreduce", inputs[0], name, ignore_name_scope
            )
            reduction = Reduction(op, prescale_factor, postscale_factor, process_set)
            operation = native.ops.horovod_grouped_allreduce
            reduced_list = reduce_group(operation, reduction, inputs, compression, names)
            for i, reduced in zip(dense, reduced_list):
                results[i] = reduced
    return results


def dense_allreduce(
    tensors: Sequence[tf.Tensor],
    *,
    op: int,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    wire_dtype: Optional[tf.DType] = None,
    process_set: ProcessSet = global_process_set,
    tensor_name: str = "",
    name: Optional[str] = None,
) -> list[tf.Tensor]:
    """`allreduce` for this library's own use: dense tensors of one dtype, as one operation.

    `tensor_name` is what ranks match by, `name` the node's name. `wire_dtype` is None, tf.float16
    or tf.bfloat16.
    """
    reduction = Reduction(op, prescale_factor, postscale_factor, process_set)
    attributes = reduction.attributes(wire_dtype, Names(name, tensor_name))
    if len(tensors) > 1:
        return list(
            run_operation(native.ops.horovod_grouped_allreduce, tensors=list(tensors), **attributes)
        )
    return [run_operation(native.ops.horovod_allreduce, tensor=tensors[0], **attributes)]


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """The same reduction of the upstream gradients."""
    return run_operation(
        native.ops.horovod_allreduce,
        tensor=tf.convert_to_tensor(gradient),
        **_gradient_attributes(op),
    )


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce_gradient(op: Any, *gradients: Any) -> list[tf.Tensor]:
    dtype = op.get_attr("T")
    # TensorFlow may fill in a gradient that is missing as float32 zeros.
    tensors = [tf.cast(tf.convert_to_tensor(gradient), dtype) for gradient in gradients]
    return list(
        run_operation(
            native.ops.horovod_grouped_allreduce, tensors=tensors, **_gradient_attributes(op)
        )
    )


def _gradient_attributes(op: Any) -> dict[str, Any]:
    names = gradient_names(op)
    return {
        "reduce_op": op.get_attr("reduce_op"),
        # Two of them: see HVD_REGISTER_REDUCTION.
        "prescale_factor": op.get_attr("prescale_factor"),
        "postscale_factor": op.get_attr("postscale_factor"),
        "exact_prescale": word_of(op, "exact_prescale"),
        "exact_postscale": word_of(op, "exact_postscale"),
        "wire_dtype": tf.compat.as_str(op.get_attr("wire_dtype")),
        "tensor_name": names.tensor_name,
        "name": names.node,
        "process_set_id": op.get_attr("process_set_id"),
    }
