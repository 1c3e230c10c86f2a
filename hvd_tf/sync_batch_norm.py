# SPDX-License-Identifier: Apache-2.0
"""`SyncBatchNormalization`: batch normalization with the moments of all ranks' batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import is_saving, is_traced_for_xla
from hvd_tf._internal.names import without_counter
from hvd_tf._internal.runtime import ProcessSet, Sum, global_process_set
from hvd_tf.process_sets import registered

_IS_KERAS_3 = not hasattr(tf.keras.optimizers.Adam, "compute_gradients")


@tf.keras.utils.register_keras_serializable(package="hvd_tf")
class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalization over the batches of all ranks together. For Keras 2 and 3.

    In training it uses the mean and the variance that a single process would compute from the
    ranks' batches one after another (Ioffe and Szegedy 2015). Ranks may have different numbers of
    rows, or none. The moving averages are the same on every rank. In inference it is Keras' own
    layer, and so is what a SavedModel has of it.

    Each call in training is a collective call of the process set's ranks.
    """

    def __init__(
        self, fused: bool = False, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        """Makes the layer.

        Args:
          fused: only False. TensorFlow's fused kernel has no place for a reduction.
          process_set: the ranks that share moments. It is no part of `get_config`.
          **kwargs: those of tf.keras.layers.BatchNormalization.

        Raises:
          ValueError: fused is not False.
        """
        if fused is not False:
            raise ValueError(
                f"SyncBatchNormalization got fused={fused}: the fused kernel cannot reduce over "
                "ranks. Leave fused out"
            )
        if not _IS_KERAS_3:
            kwargs["fused"] = False
        super().__init__(**kwargs)
        self.process_set = process_set
        self.supports_jit = False  # for compile(jit_compile="auto") of Keras 3

    def _moments(
        self,
        inputs: Any,
        axes_or_mask: Any,
        keep_dims: bool = False,
        mask: Any = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Keras' own hook. Keras 3 calls it with the inputs and the mask only."""
        if _IS_KERAS_3:
            axes, mask = self._reduction_axes, axes_or_mask
        else:
            axes = axes_or_mask
        members = registered(self.process_set)
        if members.size == 1 or members.rank < 0 or is_saving():
            arguments = (mask,) if _IS_KERAS_3 else (axes, keep_dims, mask)
            local: tuple[tf.Tensor, tf.Tensor] = super()._moments(inputs, *arguments)
            return local
        if is_traced_for_xla():
            raise ValueError(
                f"XLA cannot compile the reduction of {self.name}: pass jit_compile=False to "
                "compile()"
            )
        # A rank may have made more layers, so that Keras has numbered its own ones otherwise.
        name = f"{without_counter(self.name)}/moments"
        return _moments_of_all(inputs, axes, keep_dims, mask, self.process_set, name)


def _moments_of_all(
    inputs: tf.Tensor,
    axes: Sequence[int],
    keepdims: bool,
    mask: Optional[tf.Tensor],
    process_set: ProcessSet,
    name: str,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over the rows of all ranks that the mask, of shape inputs[:-1], leaves in.

    Each rank takes the squares from its own mean. What is summed over the ranks are 64-bit numbers,
    as the variance is a small difference of large ones there.
    """
    values = tf.cast(inputs, tf.float32) if inputs.dtype.size < 4 else inputs
    weights = tf.ones_like(values)
    if mask is not None:
        weights *= tf.cast(tf.expand_dims(mask, -1), values.dtype)
        values = tf.where(weights > 0, values, tf.zeros_like(values))
    count = tf.reduce_sum(weights, axes, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(values * weights, axes, keepdims=True), count)
    squares = tf.reduce_sum(weights * tf.square(values - mean), axes, keepdims=True)

    count, mean, squares = (tf.cast(part, tf.float64) for part in (count, mean, squares))
    sums = tf.stack([count, count * mean, squares + count * tf.square(mean)])
    sums = _sum_over_ranks(sums, process_set, name)

    mean = tf.math.divide_no_nan(sums[1], sums[0])
    variance = tf.math.divide_no_nan(sums[2], sums[0]) - tf.square(mean)
    variance = tf.maximum(variance, tf.zeros_like(variance))  # it is rounded
    if not keepdims:
        mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def _sum_over_ranks(value: tf.Tensor, process_set: ProcessSet, name: str) -> tf.Tensor:
    """The sum, whose gradient has a name of its own: that of `allreduce` is named by its node.

    Nodes stand in the scopes of the model and the layer, which ranks may have numbered otherwise.
    """

    def reduced(tensor: tf.Tensor, tensor_name: str) -> tf.Tensor:
        node = tensor_name.replace("/", "_")
        (total,) = ops.dense_allreduce(
            [tensor], op=Sum, process_set=process_set, tensor_name=tensor_name, name=node
        )
        return total

    @tf.custom_gradient
    def with_gradient(tensor: tf.Tensor) -> Any:
        return reduced(tensor, name), lambda upstream: reduced(upstream, f"{name}/gradient")

    total: tf.Tensor = with_gradient(value)
    return total
