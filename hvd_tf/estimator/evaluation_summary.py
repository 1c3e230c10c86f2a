# SPDX-License-Identifier: Apache-2.0
"""Writes the results of an evaluation where TensorBoard and BestExporter look for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_tf._internal.compat import v1


def write(directory: str, results: Mapping[str, Any], step: int) -> None:
    """Adds an event file's entry for this global step. Call it while a graph is the default.

    results: numbers, arrays, and serialized tf.Summary messages as tf.summary ops give them.
    """
    summary = v1.Summary()
    for name, value in sorted(results.items()):
        if name == v1.GraphKeys.GLOBAL_STEP or value is None:
            continue
        if isinstance(value, bytes):
            _add_parsed(summary, name, value)
        elif np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
            summary.value.add(tag=name, simple_value=float(value))
        else:
            summary.value.add(tag=name, node_name=name).tensor.CopyFrom(tf.make_tensor_proto(value))
    writer = v1.summary.FileWriterCache.get(directory)
    writer.add_summary(summary, step)
    writer.flush()


def _add_parsed(summary: v1.Summary, name: str, serialized: bytes) -> None:
    try:
        values = v1.Summary.FromString(serialized).value
    except Exception:  # DecodeError, of the protobuf that TensorFlow uses
        v1.logging.warning(f"hvd_tf: {name!r} is no summary, and is left out of the event file")
        return
    for number, value in enumerate(values):
        value.tag = f"{name}/{number}"
    summary.value.extend(values)
