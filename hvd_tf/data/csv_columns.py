# SPDX-License-Identifier: Apache-2.0
"""What a column of a CSV file is asked to be: a dtype, or a value for empty fields that has one."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

# What TensorFlow takes for no dtype.
_OF_PYTHON: dict[Any, tf.DType] = {int: tf.int64, str: tf.string, bytes: tf.string}


def kind_text(kind: Any) -> str:
    """The same for what means the same. It is compared between ranks."""
    try:
        dtype = _dtype(kind)
    except TypeError:
        dtype = None
    return repr(kind) if dtype is None else dtype.name


def dtype_and_default(name: str, kind: Any) -> tuple[tf.DType, Optional[str]]:
    """The dtype, and the value for empty fields as it would stand in the file. None: not given.

    Raises ValueError if `kind` is neither a dtype of numbers or strings, nor a scalar of one.
    """
    try:
        dtype, default = _dtype(kind), None
    except TypeError:
        raise _neither(name, kind) from None
    if dtype is None:
        dtype, default = _value(name, kind)
    if not (dtype == tf.string or dtype.is_integer or dtype.is_floating):
        raise ValueError(f"columns: {name!r} cannot be {dtype.name}: numbers and strings can")
    return dtype, default


def _dtype(kind: Any) -> Optional[tf.DType]:
    """None: it is a value. Raises TypeError for a type that TensorFlow does not know."""
    if not isinstance(kind, (tf.DType, type, np.dtype)):
        return None
    return _OF_PYTHON.get(kind) or tf.as_dtype(kind)


def _value(name: str, value: Any) -> tuple[tf.DType, str]:
    if isinstance(value, str) and _is_dtype(value):
        raise ValueError(
            f"columns: {name!r}: {value!r} is the name of a dtype: pass tf.as_dtype({value!r}), or "
            f"{value.encode()!r} where it is the text for empty fields"
        )
    try:
        tensor = tf.convert_to_tensor(value)
    except (ValueError, TypeError):
        raise _neither(name, value) from None
    if tensor.shape.rank != 0:
        raise _neither(name, value)
    if tf.is_tensor(value):
        value = tf.get_static_value(value)
    dtype = tf.int64 if type(value) is int else tensor.dtype
    return dtype, value.decode() if isinstance(value, bytes) else str(value)


def _is_dtype(name: str) -> bool:
    try:
        tf.as_dtype(name)
    except TypeError:
        return False
    return True


def _neither(name: str, kind: Any) -> ValueError:
    return ValueError(
        f"columns: {name!r}: {kind!r} is neither a dtype nor a single value for empty fields: pass "
        "one of these, such as tf.float32 or 0.0"
    )
