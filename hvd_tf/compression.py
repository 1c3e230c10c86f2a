# SPDX-License-Identifier: Apache-2.0
"""The dtypes that gradients travel in: `Compression.none`, `.fp16`, `.bf16`.

The built-in compressors name a `wire_dtype`. The library then casts while it packs and unpacks, and
calls neither `compress` nor `decompress`. A compressor of the user has no `wire_dtype`. Its two
methods are called around the operation.
"""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf


class Compressor:
    """Base of a compressor of your own: override both static methods."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor to send, and what `decompress` needs to undo it."""
        raise NotImplementedError("a Compressor must define compress(tensor)")

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the reduced tensor in its original form; `ctx` is from `compress`."""
        raise NotImplementedError("a Compressor must define decompress(tensor, ctx)")


def _cast_to(tensor: tf.Tensor, dtype: tf.DType) -> tuple[tf.Tensor, tf.DType]:
    """Casts floating tensors to `dtype`; the original dtype is the context."""
    if tensor.dtype.is_floating and tensor.dtype != dtype:
        return tf.cast(tensor, dtype), tensor.dtype
    return tensor, tensor.dtype


def _cast_back(tensor: tf.Tensor, ctx: tf.DType) -> tf.Tensor:
    return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    wire_dtype: Optional[tf.DType] = None

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Sends floating tensors as float16: 10 bits of mantissa, overflows above 65504."""

    wire_dtype: Optional[tf.DType] = tf.float16

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _cast_to(tensor, tf.float16)

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return _cast_back(tensor, ctx)


class BF16Compressor(Compressor):
    """Sends floating tensors as bfloat16: 7 bits of mantissa, the range of float32."""

    wire_dtype: Optional[tf.DType] = tf.bfloat16

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return _cast_to(tensor, tf.bfloat16)

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return _cast_back(tensor, ctx)


class Compression:
    """The compressors that `compression=` arguments take."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def names_wire_dtype(compression: Any) -> bool:
    """Whether the library casts for this compressor, so that its methods need not be called.

    Only a `wire_dtype` of the class itself counts. A subclass of `Compression.fp16` that overrides
    `compress` inherits the attribute, but its own method must be called.
    """
    cls = compression if isinstance(compression, type) else type(compression)
    return "wire_dtype" in vars(cls)


def wire_dtype_for(compression: Any, dtype: tf.DType) -> Optional[tf.DType]:
    """The dtype in which a tensor of `dtype` travels. None: its own.

    Integers are never cast. Neither is a floating tensor that would not get smaller.
    """
    wire = compression.wire_dtype if names_wire_dtype(compression) else None
    if wire is None or not dtype.is_floating or dtype.size <= wire.size:
        return None
    return wire


def apply_compression(tensor: tf.Tensor, compression: Any) -> tuple[tf.Tensor, Any]:
    """The tensor to reduce and what `undo_compression` needs, by the compressor's own method."""
    if names_wire_dtype(compression):
        return tensor, None
    return compression.compress(tensor)


def undo_compression(tensor: tf.Tensor, ctx: Any, compression: Any) -> tf.Tensor:
    """The reduced tensor in its original form."""
    if names_wire_dtype(compression):
        return tensor
    return compression.decompress(tensor, ctx)
