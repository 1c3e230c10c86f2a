# SPDX-License-Identifier: Apache-2.0
"""Collectives of plain values, and models that are loaded with a distributed optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal import variables
from hvd_tf._internal.compat import is_keras_optimizer
from hvd_tf._internal.compat.keras import (
    mend_optimizer_of_h5,
    replace_optimizer,
    run_in_session,
    value_of,
)
from hvd_tf._internal.compat.keras_loss_scale import optimizer_within, put_within
from hvd_tf._internal.keras.reducing import reducing_of
from hvd_tf._internal.runtime import Average
from hvd_tf.compression import Compression
from hvd_tf.keras.optimizers import DistributedOptimizer
from hvd_tf.sync_batch_norm import SyncBatchNormalization


def allreduce(
    value: Any,
    name: Optional[str] = None,
    average: Optional[bool] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Optional[int] = None,
    compression: Any = Compression.none,
) -> Any:
    """`hvd_tf.allreduce` of anything that tf.constant takes.

    Args:
      value: the same shape and dtype on every rank.
      name: by which the ranks match the call.
      average: deprecated. True is op=Average, False is op=Sum. It gives way to `op`.
      prescale_factor: multiplies each input.
      postscale_factor: multiplies the result.
      op: Average (the default), Sum, Min, Max or Product.
      compression: what a floating tensor is cast to on the wire.

    Returns:
      A tensor, or in a graph of TF 1 a NumPy array.
    """
    if op is None:
        op = ops.handle_average_backwards_compatibility(None, average)
    return value_of(
        ops.allreduce(
            tf.constant(value),
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=name,
        )
    )


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """`hvd_tf.allgather` of anything that tf.constant takes. Returns as `allreduce` does."""
    return value_of(ops.allgather(tf.constant(value), name=name))


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """`hvd_tf.broadcast` of anything that tf.constant takes. Returns as `allreduce` does."""
    return value_of(ops.broadcast(tf.constant(value), root_rank, name=name))


def reducescatter(value: Any, name: Optional[str] = None, op: int = Average) -> Any:
    """`hvd_tf.reducescatter` of anything that tf.constant takes. Returns as `allreduce` does."""
    return value_of(ops.reducescatter(tf.constant(value), name=name, op=op))


def broadcast_global_variables(root_rank: int) -> None:
    """Gives every rank the root's values of all variables of a graph of TF 1, in Keras' session.

    Args:
      root_rank: whose values.

    Raises:
      RuntimeError: in eager code, which has no list of all variables.
    """
    run_in_session(variables.broadcast_global_variables(root_rank))


def load_model(
    filepath: Any,
    custom_optimizers: Optional[Sequence[type]] = None,
    custom_objects: Optional[dict[str, Any]] = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    **distributed: Any,
) -> Any:
    """Loads a model of Keras, with its optimizer distributed.

    Args:
      filepath: a `.keras` or `.h5` file, or a directory of a SavedModel where Keras reads it.
      custom_optimizers: classes of optimizers that Keras does not know.
      custom_objects: what keras.models.load_model takes. If one of them makes an optimizer that is
        distributed already, that one is kept with its own arguments.
      compression: as in `DistributedOptimizer`.
      legacy_opts: accepted for Horovod's sake. Legacy optimizers are found by themselves.
      **distributed: further arguments of `DistributedOptimizer`, such as
        backward_passes_per_step. The file has none of them. A rank that loads the model needs those
        of the ranks that build it.

    Returns:
      The model. Its optimizer has the state of the file. A LossScaleOptimizer is around the
      distributed one, as `compile` makes it under a policy of mixed precision.
    """
    del legacy_opts
    known: dict[str, Any] = {"SyncBatchNormalization": SyncBatchNormalization}
    known.update((optimizer.__name__, optimizer) for optimizer in custom_optimizers or ())
    model = tf.keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    mend_optimizer_of_h5(model, filepath)
    optimizer = getattr(model, "optimizer", None)
    if is_keras_optimizer(optimizer) and reducing_of(model) is None:
        arguments = {"compression": compression, **distributed}
        within = optimizer_within(optimizer)
        if within is None:
            optimizer = DistributedOptimizer(optimizer, **arguments)
        else:  # as `compile` has it, which ranks that build the model call
            put_within(optimizer, DistributedOptimizer(within, **arguments))
        replace_optimizer(model, optimizer)
    return model
