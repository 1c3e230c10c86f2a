# SPDX-License-Identifier: Apache-2.0
"""A warning where a `train_step` of the program's own trains each rank alone.

Optimizers of Keras 2 reduce in `compute_gradients`. A `train_step` that gives `apply_gradients`
what a plain tape has found never gets there, and nothing else tells that the ranks drift apart.
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakSet

import tensorflow as tf

# Optimizers that are in a `fit` with several ranks, until they reduce or have been warned of.
_fitting: WeakSet[Any] = WeakSet()

_OF_OURS = "Horovod"  # how the names of this library's kinds of operations begin


def expect_reduction(optimizer: Any) -> None:
    """A `fit` with several ranks begins."""
    _fitting.add(optimizer)


def expect_no_more(optimizer: Any) -> None:
    """The optimizer itself has been asked to reduce, or the `fit` has ended."""
    _fitting.discard(optimizer)


def warn_if_unreduced(optimizer: Any) -> None:
    """Call it in `apply_gradients`, before anything is applied. It warns once in a `fit`.

    It looks at the graph of the step, so it is silent in eager code. It is silent too where a
    function that the step calls may reduce.
    """
    if optimizer not in _fitting or tf.executing_eagerly():
        return
    if _may_reduce(tf.compat.v1.get_default_graph()):
        return
    expect_no_more(optimizer)  # a step is traced several times
    name = type(optimizer).__name__
    warnings.warn(
        "the ranks train apart: the train_step of this fit calls 'apply_gradients' of the "
        f"distributed {name}, which does not reduce gradients, and nothing else in the step does. "
        "Call 'optimizer.minimize(loss, variables, tape=tape)', or take the gradients of "
        "'hvd.DistributedGradientTape(tape)'",
        UserWarning,
        stacklevel=3,
    )


def _may_reduce(graph: Any) -> bool:
    while graph is not None:
        for operation in graph.get_operations():
            if operation.type.startswith(_OF_OURS):
                return True
            if any(value.HasField("func") for value in operation.node_def.attr.values()):
                return True
        graph = getattr(graph, "outer_graph", None)
    return False
