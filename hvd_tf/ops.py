# SPDX-License-Identifier: Apache-2.0
"""The verbs: allreduce, allgather, broadcast; each followed by its gradient.

Every rank of the process set must make the same calls; the order does not matter. A mistake fails
the call on every rank, with every rank's value in the message:

    tf.errors.FailedPreconditionError: the ranks disagree, or hvd is not initialised.
    tf.errors.InvalidArgumentError: one rank's call is invalid; a dtype that cannot be sent.
    tf.errors.UnknownError: a peer left, died or failed; or hvd was shut down.

allreduce takes uint8, int8, int32, int64, float16, bfloat16, float32 and float64; the others take
uint16, int16 and bool too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf import native
from hvd_tf.compression import Compression, names_wire_dtype, wire_dtype_for
from hvd_tf.op_names import call_names, gradient_tensor_name, part_names
from hvd_tf.runtime import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    global_process_set,
)

TensorOrSlices = Union[tf.Tensor, tf.IndexedSlices]

_ops = native.ops
_OP_NAMES = {Average: "Average", Sum: "Sum", Min: "Min", Max: "Max", Product: "Product"}
_WIRE_NAMES = {None: "none", tf.float16: "fp16", tf.bfloat16: "bf16"}


# ---- arguments ---------------------------------------------------------------------------------


def handle_average_backwards_compatibility(op: Optional[int], average: Optional[bool]) -> int:
    """The reduce op that `op` and its deprecated alias `average` ask for; Average by default.

    Raises:
        ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise ValueError("pass op or average, not both; average is deprecated, so pass op")
    warnings.warn(
        "average= is deprecated; pass op=hvd.Average or op=hvd.Sum", DeprecationWarning, stacklevel=3
    )
    return Average if average else Sum


def _check_op(op: int) -> None:
    if op == Adasum:
        raise NotImplementedError("Adasum is not offered yet; use op=hvd.Average or op=hvd.Sum")
    if op not in _OP_NAMES:
        raise ValueError(f"op={op!r}: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product")


def _check_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    """Refuses what slices cannot do, before anything is sent."""
    _check_op(op)
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"op={_OP_NAMES[op]} cannot reduce tf.IndexedSlices, whose rows are added up later; use "
            "hvd.Average or hvd.Sum, or tf.convert_to_tensor first"
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor cannot scale tf.IndexedSlices; scale their values"
        )


def _set_id(process_set: ProcessSet) -> int:
    if process_set.process_set_id is None:
        raise ValueError(
            f"{process_set} is not registered; pass it to hvd.init(process_sets=...) on every rank"
        )
    return process_set.process_set_id


def _scale_text(factor: float) -> str:
    """Decimal text that keeps all bits: TensorFlow's float attributes have 24."""
    return "1" if factor == 1.0 else repr(float(factor))


def _on_device(device: str) -> AbstractContextManager[Any]:
    return tf.device(device) if device else nullcontext()


def _by_dtype(
    tensors: Sequence[tf.Tensor],
    names: tuple[Optional[str], str],
    run: Callable[[list[tf.Tensor], tuple[Optional[str], str]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """`run` on the tensors of each dtype; one operation has one dtype."""
    places: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(i)
    results: list[Any] = [None] * len(tensors)
    for dtype, indices in places.items():
        part = names if len(places) == 1 else part_names(names, dtype.name)
        for i, result in zip(indices, run([tensors[i] for i in indices], part)):
            results[i] = result
    return results


# ---- allreduce ---------------------------------------------------------------------------------


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
            every rank. Slices are gathered: the result has every rank's rows.
        average: deprecated; True is op=Average, False is op=Sum.
        device_dense: where the operation is placed for a tensor, such as "/cpu:0".
        device_sparse: the same for tf.IndexedSlices.
        compression: what a floating tensor is cast to on the wire; not for slices.
        op: Average (the default), Sum, Min, Max or Product. An integer average is truncated.
        prescale_factor: multiplies each input.
        postscale_factor: multiplies the result.
        name: by which the ranks match the call; see op_names.
        process_set: the ranks that take part.
        ignore_name_scope: match by `name` alone, whatever the name scope.

    Returns:
        A tensor of the input's shape and dtype, the same on every rank.

    Raises:
        ValueError: op and average are both given; an unknown op; an unregistered process set.
        NotImplementedError: op=Adasum; slices with another op than Average and Sum, or scaled.
    """
    op = handle_average_backwards_compatibility(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(op, prescale_factor, postscale_factor)
        names = call_names(
            "sparse_allreduce", "HorovodAllgather", tensor.values, name, ignore_name_scope
        )
        with _on_device(device_sparse):
            return _reduce_slices([tensor], op, process_set, names)[0]
    with _on_device(device_dense):
        tensor = tf.convert_to_tensor(tensor)
        names = call_names("allreduce", "HorovodAllreduce", tensor, name, ignore_name_scope)
        packed, context = _compress(tensor, compression)
        (reduced,) = _reduce_dense(
            [packed],
            op,
            prescale_factor,
            postscale_factor,
            wire_dtype_for(compression, packed.dtype),
            process_set,
            names,
        )
        return _decompress(reduced, context, compression)


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
        The results in the order of `tensors`; an empty list is returned as it is.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    op = handle_average_backwards_compatibility(op, average)
    _check_op(op)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    if sparse:
        _check_sparse(op, prescale_factor, postscale_factor)
    results: list[Any] = [None] * len(tensors)
    if sparse:
        slices = [tensors[i] for i in sparse]
        names = call_names(
            "grouped_sparse_allreduce",
            "HorovodGroupedAllgather",
            slices[0].values,
            name,
            ignore_name_scope,
        )
        with _on_device(device_sparse):
            for i, reduced in zip(sparse, _reduce_slices(slices, op, process_set, names)):
                results[i] = reduced
    if dense:
        with _on_device(device_dense):
            inputs = [tf.convert_to_tensor(tensors[i]) for i in dense]
            names = call_names(
                "grouped_allreduce", "HorovodGroupedAllreduce", inputs[0], name, ignore_name_scope
            )
            packed = [_compress(tensor, compression) for tensor in inputs]
            reduced_list = _by_dtype(
                [tensor for tensor, _ in packed],
                names,
                lambda part, part_name: _reduce_dense(
                    part,
                    op,
                    prescale_factor,
                    postscale_factor,
                    wire_dtype_for(compression, part[0].dtype),
                    process_set,
                    part_name,
                    grouped=True,
                ),
            )
            for i, reduced, (_, context) in zip(dense, reduced_list, packed):
                results[i] = _decompress(reduced, context, compression)
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
    return _reduce_dense(
        list(tensors),
        op,
        prescale_factor,
        postscale_factor,
        wire_dtype,
        process_set,
        (name, tensor_name),
        grouped=len(tensors) > 1,
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
    _check_sparse(op, 1.0, 1.0)
    return _reduce_slices([slices], op, process_set, (name, tensor_name))[0]


def _compress(tensor: tf.Tensor, compression: Any) -> tuple[tf.Tensor, Any]:
    if names_wire_dtype(compression):
        return tensor, None
    return compression.compress(tensor)


def _decompress(tensor: tf.Tensor, context: Any, compression: Any) -> tf.Tensor:
    return tensor if names_wire_dtype(compression) else compression.decompress(tensor, context)


def _reduce_dense(
    tensors: list[tf.Tensor],
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    wire_dtype: Optional[tf.DType],
    process_set: ProcessSet,
    names: tuple[Optional[str], str],
    grouped: bool = False,
) -> list[tf.Tensor]:
    _check_op(op)
    attributes = {
        "reduce_op": op,
        "prescale_factor": _scale_text(prescale_factor),
        "postscale_factor": _scale_text(postscale_factor),
        "wire_dtype": _WIRE_NAMES[wire_dtype],
        "tensor_name": names[1],
        "process_set_id": _set_id(process_set),
        "name": names[0],
    }
    if grouped:
        return list(_ops.horovod_grouped_allreduce(tensors=tensors, **attributes))
    return [_ops.horovod_allreduce(tensor=tensors[0], **attributes)]


def _reduce_slices(
    slices: list[tf.IndexedSlices],
    op: int,
    process_set: ProcessSet,
    names: tuple[Optional[str], str],
) -> list[tf.IndexedSlices]:
    """Every rank's rows, in rank order: duplicates are added up by whoever applies them."""
    values = [part.values for part in slices]
    if op == Average:
        # Before the gather: each rank divides its own rows only.
        values = [_divided_by_size(value, process_set) for value in values]
    indices = [part.indices for part in slices]
    gathered_values = _gather_all(values, part_names(names, "values"), process_set)
    gathered_indices = _gather_all(indices, part_names(names, "indices"), process_set)
    return [
        tf.IndexedSlices(value, index, dense_shape=part.dense_shape)
        for value, index, part in zip(gathered_values, gathered_indices, slices)
    ]


def _divided_by_size(values: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    _set_id(process_set)
    eager = tf.executing_eagerly()
    size = process_set.size() if eager else size_op(process_set.process_set_id)
    divisor = tf.cast(size, values.dtype)
    return values / divisor if values.dtype.is_floating else tf.truncatediv(values, divisor)


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """The same reduction of the upstream gradients."""
    return _ops.horovod_allreduce(
        tensor=tf.convert_to_tensor(gradient), **_gradient_attributes(op)
    )


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce_gradient(op: Any, *gradients: Any) -> list[tf.Tensor]:
    dtype = op.get_attr("T")
    # TensorFlow may fill in a gradient that is missing as float32 zeros.
    tensors = [tf.cast(tf.convert_to_tensor(gradient), dtype) for gradient in gradients]
    return list(_ops.horovod_grouped_allreduce(tensors=tensors, **_gradient_attributes(op)))


def _gradient_attributes(op: Any) -> dict[str, Any]:
    text = tf.compat.as_str
    return {
        "reduce_op": op.get_attr("reduce_op"),
        "prescale_factor": text(op.get_attr("prescale_factor")),
        "postscale_factor": text(op.get_attr("postscale_factor")),
        "wire_dtype": text(op.get_attr("wire_dtype")),
        "tensor_name": gradient_tensor_name(op.get_attr("tensor_name")),
        "process_set_id": op.get_attr("process_set_id"),
    }


# ---- allgather ---------------------------------------------------------------------------------


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    Args:
        tensor: what tf.convert_to_tensor accepts, of rank 1 or more; the same dtype and shape on
            every rank, but for the first dimension.
        name, ignore_name_scope, process_set: as in `allreduce`.

    Returns:
        A tensor of the input's dtype and shape but for the first dimension, which is the sum of
        the ranks'.
    """
    tensor = tf.convert_to_tensor(tensor)
    names = call_names("allgather", "HorovodAllgather", tensor, name, ignore_name_scope)
    return _gather(tensor, names, _set_id(process_set))


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gathers several tensors that are agreed on, travel and fail as one per dtype.

    As `allgather`; `tensors` are in the same order on every rank, and so are the results. An empty
    list is returned as it is.
    """
    if not tensors:
        return tensors  # type: ignore[return-value]
    inputs = [tf.convert_to_tensor(tensor) for tensor in tensors]
    names = call_names(
        "grouped_allgather", "HorovodGroupedAllgather", inputs[0], name, ignore_name_scope
    )
    return _gather_all(inputs, names, process_set)


def _gather(tensor: tf.Tensor, names: tuple[Optional[str], str], set_id: int) -> tf.Tensor:
    return _ops.horovod_allgather(
        tensor=tensor, tensor_name=names[1], process_set_id=set_id, name=names[0]
    )


def _gather_all(
    tensors: list[tf.Tensor], names: tuple[Optional[str], str], process_set: ProcessSet
) -> list[tf.Tensor]:
    set_id = _set_id(process_set)
    if len(tensors) == 1:
        return [_gather(tensors[0], names, set_id)]
    return _by_dtype(
        tensors,
        names,
        lambda part, part_name: list(
            _ops.horovod_grouped_allgather(
                tensors=part, tensor_name=part_name[1], process_set_id=set_id, name=part_name[0]
            )
        ),
    )


@tf.RegisterGradient("HorovodAllgather")
def _allgather_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """The average of the upstream gradients, cut down to this rank's rows."""
    return _own_rows(op, op.inputs[0], gradient, "gradient")


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather_gradient(op: Any, *gradients: Any) -> list[tf.Tensor]:
    return [
        _own_rows(op, tensor, gradient, f"gradient.{i}")
        for i, (tensor, gradient) in enumerate(zip(op.inputs, gradients))
    ]


def _own_rows(op: Any, tensor: tf.Tensor, gradient: Any, part: str) -> tf.Tensor:
    set_id = op.get_attr("process_set_id")
    tensor_name = gradient_tensor_name(op.get_attr("tensor_name"))
    if tensor_name:
        tensor_name = f"{tensor_name}/{part}"
    average = _ops.horovod_allreduce(
        # TensorFlow may fill in a gradient that is missing as float32 zeros.
        tensor=tf.cast(tf.convert_to_tensor(gradient), tensor.dtype),
        reduce_op=Average,
        tensor_name=tensor_name,
        process_set_id=set_id,
    )
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    all_rows = _gather(rows, (None, f"{tensor_name}/rows" if tensor_name else ""), set_id)
    place = native.lib.hvd_process_set_rank(set_id)
    start = tf.reduce_sum(all_rows[:place])
    return average[start : start + rows[0]]


# ---- broadcast ---------------------------------------------------------------------------------


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives every rank the root's tensor.

    Args:
        tensor: what tf.convert_to_tensor accepts; the same shape and dtype on every rank.
        root_rank: the rank, in the job also with a process set, whose values are sent.
        name, ignore_name_scope, process_set: as in `allreduce`.

    Returns:
        A tensor of the input's shape and dtype.
    """
    tensor = tf.convert_to_tensor(tensor)
    names = call_names("broadcast", "HorovodBroadcast", tensor, name, ignore_name_scope)
    return _ops.horovod_broadcast(
        tensor=tensor,
        root_rank=root_rank,
        tensor_name=names[1],
        process_set_id=_set_id(process_set),
        name=names[0],
    )


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_gradient(op: Any, gradient: Any) -> tf.Tensor:
    """The average of the upstream gradients on the root, zeros elsewhere."""
    average = _ops.horovod_allreduce(
        tensor=tf.convert_to_tensor(gradient),
        reduce_op=Average,
        tensor_name=gradient_tensor_name(op.get_attr("tensor_name")),
        process_set_id=op.get_attr("process_set_id"),
    )
    # Not a factor 0, which would make NaN of an infinite gradient; and decided when the graph
    # runs: TensorFlow would remove an allreduce whose result it knows not to matter.
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return tf.where(is_root, average, tf.zeros_like(average))


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gives variables the values that they have on the root.

    Args:
        variables: initialised tf.Variables, all of them resource variables or none; the same
            shapes and dtypes in the same order on every rank.
        root_rank, name, process_set: as in `broadcast`.

    Returns:
        The new values, in order.

    Raises:
        ValueError: resource and reference variables are mixed.
    """
    variables = list(variables)
    if not variables:
        return []
    resource = [hasattr(variable, "handle") for variable in variables]
    if any(resource) and not all(resource):
        raise ValueError(
            "broadcast_ takes resource variables or reference variables, not both in one call"
        )
    run = _broadcast_resources if resource[0] else _broadcast_references
    return run(variables, root_rank, name, _set_id(process_set))


def _broadcast_resources(
    variables: list[Any], root_rank: int, name: Optional[str], set_id: int
) -> list[tf.Tensor]:
    names = call_names("broadcast_", "HorovodBroadcastInplace", variables[0], name, False)

    def run(part: list[Any], part_name: tuple[Optional[str], str]) -> list[tf.Tensor]:
        done = _ops.horovod_broadcast_inplace_resource(
            resources=[variable.handle for variable in part],
            T=part[0].dtype,
            root_rank=root_rank,
            tensor_name=part_name[1],
            process_set_id=set_id,
            name=part_name[0],
        )
        with tf.control_dependencies([done] if done is not None else []):
            return [variable.read_value() for variable in part]

    return _by_dtype(variables, names, run)


def _broadcast_references(
    variables: list[Any], root_rank: int, name: Optional[str], set_id: int
) -> list[tf.Tensor]:
    names = call_names("broadcast_", "HorovodBroadcastInplace", variables[0], name, False)

    def run(part: list[Any], part_name: tuple[Optional[str], str]) -> list[tf.Tensor]:
        references = _ops.horovod_broadcast_inplace(
            variables=[variable._ref() for variable in part],
            root_rank=root_rank,
            tensor_name=part_name[1],
            process_set_id=set_id,
            name=part_name[0],
        )
        return [tf.identity(reference) for reference in references]

    return _by_dtype(variables, names, run)


# ---- rank and size, read when the graph runs ---------------------------------------------------


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the number of ranks of a process set."""
    return _ops.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: 1 where this rank is a member, else 0; negative for an unknown set."""
    return _ops.horovod_process_set_included(process_set_id=process_set_id, name=name)


def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the number of ranks on this host."""
    return _ops.horovod_local_size(name=name)


def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the rank of this process."""
    return _ops.horovod_rank(name=name)


def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the rank of this process among those of its host."""
    return _ops.horovod_local_rank(name=name)


for _type in (
    "HorovodSize",
    "HorovodProcessSetIncluded",
    "HorovodLocalSize",
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodBroadcastInplace",
    "HorovodBroadcastInplaceResource",
):
    tf.no_gradient(_type)
