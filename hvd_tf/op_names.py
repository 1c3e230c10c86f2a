# SPDX-License-Identifier: Apache-2.0
"""What one call of an operation is called: its node in a graph, and between ranks.

In a graph ranks match calls by the node's name, which TensorFlow keeps unique; so code that is the
same on every rank needs no names. An eager call has no node: it goes by the caller's `name`, or by
one that stays the same from call to call, so that a million calls leave nothing behind.
"""

from __future__ import annotations

import itertools
import re
import threading
from typing import Any, Optional

import tensorflow as tf

# Of a call: the node's name (None: TensorFlow's choice), and the attribute `tensor_name`, which the
# ranks match by (empty: the node's name).
Names = tuple[Optional[str], str]

_NOT_IN_NODE_NAMES = re.compile(r"[^A-Za-z0-9_.\\/-]")
_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_]")


class _ThreadOrdinal(threading.local):
    """`value`: 0 in the main thread, 1 in the next thread that calls hvd eagerly, and so on."""

    def __init__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        self.value = 0 if main else next(_other_threads)


_other_threads = itertools.count(1)
_thread_ordinal = _ThreadOrdinal()


def call_names(
    verb: str, op_type: str, tensor: Any, name: Optional[str], ignore_name_scope: bool
) -> Names:
    """The names of a call; `tensor` is its (first) input, which gives an unnamed node its name."""
    if tf.executing_eagerly():
        return None, name or f"{verb}.eager.{_thread_ordinal.value}"
    if name is None:
        return f"{op_type}_{_NOT_IN_WORDS.sub('_', tensor.name)}", ""
    node = _node_name(name)
    if ignore_name_scope:
        return node, name
    if node != name:  # two names may become one node name, and then be numbered
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        return node, f"{scope}/{name}" if scope else name
    return name, ""


def part_names(names: Names, part: str) -> Names:
    """The names of one operation out of several that make up a call."""
    node, tensor_name = names
    return f"{node}_{part}" if node else None, f"{tensor_name}/{part}" if tensor_name else ""


def gradient_tensor_name(tensor_name: Any) -> str:
    """The `tensor_name` of a gradient's operation, from that of the forward operation.

    In a graph it is the node's name: the gradient of one node may be asked for twice.
    """
    text = tf.compat.as_str(tensor_name)
    return f"{text}/gradient" if text and tf.executing_eagerly() else ""


def _node_name(name: str) -> str:
    node = _NOT_IN_NODE_NAMES.sub("_", name)
    return node if re.match("[A-Za-z0-9.]", node) else f"n{node}"
