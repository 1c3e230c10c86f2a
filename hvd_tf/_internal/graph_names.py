# SPDX-License-Identifier: Apache-2.0
"""The names by which ranks match the collectives of a graph of TF 1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf


def collectives_of(graph: tf.Graph) -> list[str]:
    """Their names, ascending. One that ends with "/" stands for all names that begin with it.

    A collective without a name of its own goes by its node. Within a function that is the path of
    the operation that calls the function, and the node's own name.
    """
    nodes = [operation.node_def for operation in graph.get_operations()]
    names = {own or node for own, node in _names_of(nodes)}
    callers = [node.name for node in nodes if _calls(node)]
    if callers:
        for function in graph.as_graph_def().library.function:
            for own, _ in _names_of(function.node_def):
                names.update([own] if own else [f"{caller}/" for caller in callers])
    return sorted(names)


def _names_of(nodes: Iterable[Any]) -> list[tuple[str, str]]:
    """The own name and the node's name of each collective among the nodes."""
    return [
        (node.attr["tensor_name"].s.decode(), node.name)
        for node in nodes
        if node.op.startswith("Horovod") and "tensor_name" in node.attr
    ]


def _calls(node: Any) -> bool:
    return any(value.HasField("func") or value.list.func for value in node.attr.values())
