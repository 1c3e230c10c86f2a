# SPDX-License-Identifier: Apache-2.0
"""What one call of an operation is called: its node in a graph, and between ranks.

In a graph ranks match calls by the node's name. TensorFlow keeps it unique, so code that is the
same on every rank needs no names. An eager call has no node. It goes by the caller's `name`, or by
one that stays the same from call to call. Unnamed calls match by their order. Ranks know only two
of each other's threads: the main thread, and the one that called `init`. In any other thread a call
needs a name. Names that are ever new leave nothing behind (eager_words.py).
"""

from __future__ import annotations

import re
import threading
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from hvd_tf._internal.compat import is_traced_for_xla
from hvd_tf._internal.eager_words import word_of

_NOT_IN_NODE_NAMES = re.compile(r"[^A-Za-z0-9_.\\/-]")
_NUMBER = re.compile(r"\d+:\d+")
_NOT_IN_WORDS = re.compile(r"[^A-Za-z0-9_]")


class Names(NamedTuple):
    """The names of one call."""

    node: Optional[str]
    """The name of its node in a graph. None: TensorFlow's choice."""
    tensor_name: str
    """The operation's attribute, which ranks match the call by. Empty: the node's name."""


_of_this_thread = threading.local()
_latest_init = object()


def mark_init_thread() -> None:
    """Unnamed calls are this thread's from now on, beside the main thread's. `init` calls it."""
    global _latest_init
    # Not the thread's number: that of a thread that has ended is given to another one.
    _of_this_thread.init = _latest_init = object()


def unnamed(verb: str) -> str:
    """What an eager call without a `name` is called, by its verb and its thread.

    Raises:
      ValueError: ranks could not tell this thread from others.
    """
    if threading.get_ident() == threading.main_thread().ident:
        return verb
    if getattr(_of_this_thread, "init", None) is _latest_init:
        return f"{verb}.init_thread"
    raise ValueError(
        f"{verb} in the thread {threading.current_thread().name!r} needs name=: calls without one "
        "match in the order in which a thread makes them, and ranks only know each other's main "
        "thread and the one that called hvd.init(); give it a name of its own, the same on every "
        "rank"
    )


def check_place(verb: str) -> None:
    """Raises ValueError where XLA will compile what is being traced: it has no such operation."""
    if is_traced_for_xla():
        raise ValueError(
            f"XLA cannot compile {verb}, which waits for other ranks: call it outside of what "
            "jit_compile=True compiles"
        )


def call_names(
    verb: str, op_type: str, tensor: Any, name: Optional[str], ignore_name_scope: bool
) -> Names:
    """The names of a call. `tensor` is its (first) input. It gives an unnamed node its name.

    Raises:
      ValueError: an eager call needs a name here; XLA compiles what is being traced.
    """
    check_place(verb)
    if tf.executing_eagerly():
        return Names(None, name or f"{unnamed(verb)}.eager")
    if name is None:
        # What a function captures of eager code has a number, of all eager tensors of this rank.
        is_captured = _NUMBER.fullmatch(tensor.name) is not None
        of = "captured" if is_captured else _NOT_IN_WORDS.sub("_", tensor.name)
        return Names(f"{op_type}_{of}", "")
    node = _node_name(name)
    if node == op_type:  # a kernel of that name is taken for one of an eager call
        node += "_"
    if ignore_name_scope:
        return Names(node, name)
    if node != name:  # two names may become one node name, and then be numbered
        scope = tf.compat.v1.get_default_graph().get_name_scope()
        return Names(node, f"{scope}/{name}" if scope else name)
    return Names(name, "")


def part_names(names: Names, part: str) -> Names:
    """The names of one operation out of several that make up a call."""
    node, tensor_name = names
    return Names(f"{node}_{part}" if node else None, f"{tensor_name}/{part}" if tensor_name else "")


def gradient_names(operation: Any, part: str = "") -> Names:
    """The names of a gradient's operation, or of a part of it, from the forward operation.

    In a graph TensorFlow would give the gradients of all calls one name, and number them. Threads
    have graphs of their own, so the gradients of two calls would meet there. A node's gradient may
    be asked for twice, so ranks go by the name of its own node.
    """
    text = word_of(operation, "tensor_name")
    if tf.executing_eagerly():
        return Names(None, f"{text}/gradient{part}" if text else "")
    # The tape does not tell the node's name. What it has of an eager call is no node.
    node = getattr(getattr(operation.outputs[0], "op", None), "name", "")
    base = text or node
    return Names(_node_name(f"{base}_gradient{part}") if base else None, "")


def _node_name(name: str) -> str:
    node = _NOT_IN_NODE_NAMES.sub("_", name)
    return node if re.match("[A-Za-z0-9.]", node) else f"n{node}"
