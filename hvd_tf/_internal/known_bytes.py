# SPDX-License-Identifier: Apache-2.0
"""Tells a graph how large the tensor of an allreduce is, where its shape is known.

Small ones are bundled when the graph is executed (tf_ops/adapter/bundle_pass.cc). Nodes have no
shapes there.
"""

from __future__ import annotations

from typing import Any

from tensorflow.core.framework.attr_value_pb2 import AttrValue

_ATTRIBUTE = "_hvd_bytes"


def with_known_bytes(result: Any) -> Any:
    """The result of an operation of a graph, whose node has its bytes now if it can be bundled."""
    operation = getattr(result, "op", None)  # not of a list, nor of an operation
    if operation is None or operation.type != "HorovodAllreduce":
        return result
    elements = result.shape.num_elements()
    if elements is not None:
        size = AttrValue(i=elements * result.dtype.size)
        operation._set_attr(_ATTRIBUTE, size)  # pylint: disable=protected-access
    return result
