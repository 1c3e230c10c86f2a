# SPDX-License-Identifier: Apache-2.0
"""The calls that are timed: for each case a call of the verb, and the same call with tf.negative.

`make` looks up a case's call in `_MAKERS`. A new verb needs a function there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


class MissingError(Exception):
    """The module cannot do this. The text says why."""


@dataclass(frozen=True)
class Calls:
    """What a rank times for a case."""

    verb: Callable[[], Any]
    plain: Callable[[], Any]
    """The same call on the same tensors, with tf.negative in place of the verb."""
    ends: Callable[[Any], tuple[float, float]]
    """Returns the first and the last value of the first tensor in the verb's result."""
    expected: tuple[float, float]

    def check(self, result: Any) -> None:
        """Raises RuntimeError if the verb's result is wrong."""
        found = self.ends(result)
        if found != self.expected:
            raise RuntimeError(
                f"wrong result: first and last value are {found}, not {self.expected}"
            )


def make(module: Any, case: dict[str, Any], prefix: str) -> Calls:
    """The calls of a case.

    Args:
      module: such as horovod.tensorflow, initialised.
      case: "call" and "shapes" of a hvd_tf.bench.cases.Case.
      prefix: the prefix of the names by which the ranks match the tensors.

    Raises:
      MissingError: the module lacks the verb.
    """
    maker, attribute = _MAKERS[case["call"]]
    if not hasattr(module, attribute):
        raise MissingError(f"{module.__name__} has no {attribute}")
    # Every rank has its own values: 1 on rank 0, 2 on rank 1.
    value = module.rank() + 1.0
    tensors = [tf.constant(np.full(shape, value, np.float32)) for shape in case["shapes"]]
    return maker(module, tensors, prefix)


def _allreduce(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    def reduce_each(*given: tf.Tensor) -> list[tf.Tensor]:
        return [
            module.allreduce(tensor, name=f"{prefix}.{i}", op=module.Sum)
            for i, tensor in enumerate(given)
        ]

    return _out_of_place(reduce_each, tensors, _sum(module))


def _grouped_allreduce(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    def reduce_together(*given: tf.Tensor) -> list[tf.Tensor]:
        # Some versions take no name.
        return module.grouped_allreduce(list(given), op=module.Sum)

    return _out_of_place(reduce_together, tensors, _sum(module))


def _sparse_allreduce(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    (values,) = tensors
    rows, width = values.shape
    # Each rank has rows of its own. So a sum of rows and a gathering of rows are the same.
    first = module.rank() * rows
    indices = tf.range(first, first + rows, dtype=tf.int64)
    shape = tf.constant([module.size() * rows, width], tf.int64)

    def reduce_slices(values: tf.Tensor, indices: tf.Tensor) -> list[tf.Tensor]:
        slices = tf.IndexedSlices(values, indices, shape)
        reduced = module.allreduce(slices, name=prefix, op=module.Sum)
        return [reduced.values, reduced.indices]

    return _out_of_place(reduce_slices, [values, indices], (1.0, float(module.size())))


def _allgather(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    def gather(tensor: tf.Tensor) -> list[tf.Tensor]:
        return [module.allgather(tensor, name=prefix)]

    return _out_of_place(gather, tensors, (1.0, float(module.size())))


def _alltoall(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    def exchange(tensor: tf.Tensor) -> list[tf.Tensor]:
        return [module.alltoall(tensor, name=prefix)]

    return _out_of_place(exchange, tensors, (1.0, float(module.size())))


def _alltoall_uneven(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    size, rows = module.size(), tensors[0].shape[0]
    parts = np.roll(np.arange(1, size + 1), module.rank())  # one part for this rank itself
    splits = rows * parts // parts.sum()
    splits[module.rank() - 1] += rows - splits.sum()
    splits = tf.constant(splits, tf.int32)

    def exchange(tensor: tf.Tensor) -> list[tf.Tensor]:
        return [module.alltoall(tensor, splits=splits, name=prefix)[0]]

    return _out_of_place(exchange, tensors, (1.0, float(size)))


def _reducescatter(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    def reduce(tensor: tf.Tensor) -> list[tf.Tensor]:
        return [module.reducescatter(tensor, op=module.Sum, name=prefix)]

    return _out_of_place(reduce, tensors, _sum(module))


def _barrier(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    def meet(tensor: tf.Tensor) -> list[tf.Tensor]:
        if not hasattr(module, "barrier"):
            return [module.allreduce(tensor, name=prefix, op=module.Max)]
        with tf.control_dependencies([module.barrier(name=prefix)]):
            return [tf.identity(tensor)]

    last = float(module.size()) if not hasattr(module, "barrier") else module.rank() + 1.0
    return _out_of_place(meet, tensors, (last, last))


def _broadcast(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    def send(tensor: tf.Tensor) -> list[tf.Tensor]:
        return [module.broadcast(tensor, root_rank=0, name=prefix)]

    return _out_of_place(send, tensors, (1.0, 1.0))


def _broadcast_in_place(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    if "inplace" not in inspect.signature(module.broadcast_variables).parameters:
        raise MissingError(f"{module.__name__}.broadcast_variables has no inplace=True")
    variables = _variables(tensors, prefix)

    @tf.function(autograph=False)
    def send() -> None:
        module.broadcast_variables(variables, root_rank=0, inplace=True)

    return _of_variables(send.get_concrete_function(), variables)


def _broadcast_variables(module: Any, tensors: list[tf.Tensor], prefix: str) -> Calls:
    variables = _variables(tensors, prefix)
    return _of_variables(lambda: module.broadcast_variables(variables, root_rank=0), variables)


# By the call's name in a case: the function that makes it, and what the module must have for it.
_MAKERS = {
    "allreduce": (_allreduce, "allreduce"),
    "grouped_allreduce": (_grouped_allreduce, "grouped_allreduce"),
    "sparse_allreduce": (_sparse_allreduce, "allreduce"),
    "allgather": (_allgather, "allgather"),
    "broadcast": (_broadcast, "broadcast"),
    "alltoall": (_alltoall, "alltoall"),
    "alltoall_uneven": (_alltoall_uneven, "alltoall"),
    "reducescatter": (_reducescatter, "reducescatter"),
    "barrier": (_barrier, "allreduce"),
    "broadcast_in_place": (_broadcast_in_place, "broadcast_variables"),
    "broadcast_variables": (_broadcast_variables, "broadcast_variables"),
}


def _out_of_place(
    body: Callable[..., list[tf.Tensor]],
    tensors: Sequence[tf.Tensor],
    expected: tuple[float, float],
) -> Calls:
    # The inputs are variables, as in training. TensorFlow could compute with constants beforehand.
    # On a function's arguments it spends more time than many verbs take.
    variables = [tf.Variable(tensor) for tensor in tensors]

    def function(body: Callable[..., list[tf.Tensor]]) -> Callable[[], list[tf.Tensor]]:
        traced = tf.function(lambda: body(*[v.read_value() for v in variables]), autograph=False)
        return traced.get_concrete_function()  # so that calls do not look into its cache

    return Calls(
        verb=function(body),
        plain=function(lambda *given: [tf.negative(t) for t in given]),
        ends=lambda result: _ends(result[0]),
        expected=expected,
    )


def _of_variables(verb: Callable[[], Any], variables: list[tf.Variable]) -> Calls:
    @tf.function(autograph=False)
    def plain() -> None:
        for variable in variables:
            variable.assign(tf.negative(variable))

    plain = plain.get_concrete_function()
    return Calls(verb, plain, ends=lambda _: _ends(variables[0]), expected=(1.0, 1.0))


def _variables(tensors: list[tf.Tensor], prefix: str) -> list[tf.Variable]:
    return [tf.Variable(tensor, name=f"{prefix}_{i}") for i, tensor in enumerate(tensors)]


def _ends(values: Any) -> tuple[float, float]:
    flat = tf.reshape(values, [math.prod(values.shape)])
    return float(flat[0]), float(flat[-1])


def _sum(module: Any) -> tuple[float, float]:
    total = module.size() * (module.size() + 1) / 2
    return total, total
