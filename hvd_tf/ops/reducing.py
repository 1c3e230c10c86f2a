# SPDX-License-Identifier: Apache-2.0
"""What the verbs that reduce have in common: attributes, compression, an operation per dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from hvd_tf._internal.eager_words import run_operation
from hvd_tf._internal.op_names import Names
from hvd_tf._internal.runtime import ProcessSet
from hvd_tf.compression import apply_compression, undo_compression, wire_dtype_for
from hvd_tf.ops.arguments import by_dtype, check_op, registered_id

# The operations' attribute for what a tensor is cast to on the wire.
_WIRE_NAMES = {None: "none", tf.float16: "fp16", tf.bfloat16: "bf16"}


class Reduction(NamedTuple):
    """How the tensors of a call are reduced."""

    op: int
    prescale_factor: float
    postscale_factor: float
    process_set: ProcessSet

    def attributes(self, wire_dtype: Optional[tf.DType], names: Names) -> dict[str, Any]:
        """Arguments of the operation.

        Raises:
          ValueError: an unknown op; an unregistered process set.
        """
        check_op(self.op)
        return {
            "reduce_op": self.op,
            # TensorFlow's own defaults for these are of type int, which takes 30 us more.
            "prescale_factor": 1.0,
            "postscale_factor": 1.0,
            "exact_prescale": _scale_text(self.prescale_factor),
            "exact_postscale": _scale_text(self.postscale_factor),
            "wire_dtype": _WIRE_NAMES[wire_dtype],
            "tensor_name": names.tensor_name,
            "process_set_id": registered_id(self.process_set),
            "name": names.node,
        }


def reduce_one(
    operation: Callable[..., tf.Tensor],
    reduction: Reduction,
    tensor: tf.Tensor,
    compression: Any,
    names: Names,
) -> tf.Tensor:
    """The result of the operation for a tensor."""
    packed, context = apply_compression(tensor, compression)
    attributes = reduction.attributes(wire_dtype_for(compression, packed.dtype), names)
    return undo_compression(
        run_operation(operation, tensor=packed, **attributes), context, compression
    )


def reduce_group(
    operation: Callable[..., Sequence[tf.Tensor]],
    reduction: Reduction,
    tensors: Sequence[tf.Tensor],
    compression: Any,
    names: Names,
) -> list[tf.Tensor]:
    """The results of the grouped operation, which is made for the tensors of each dtype."""

    def run(part: list[tf.Tensor], part_names: Names) -> list[tf.Tensor]:
        attributes = reduction.attributes(wire_dtype_for(compression, part[0].dtype), part_names)
        return list(run_operation(operation, tensors=part, **attributes))

    packed = [apply_compression(tensor, compression) for tensor in tensors]
    results = by_dtype([tensor for tensor, _ in packed], names, run)
    return [
        undo_compression(result, context, compression)
        for result, (_, context) in zip(results, packed)
    ]


def _scale_text(factor: float) -> str:
    """Decimal text that keeps all bits. TensorFlow's float attributes have only 24."""
    return "1" if factor == 1.0 else repr(float(factor))
