# SPDX-License-Identifier: Apache-2.0
"""The policy for gradients: which are reduced, how, in which groups, under which names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union, cast

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import (
    Variable,
    is_keras_layer,
    is_traced_for_xla,
    parts_of,
    tf_variable,
    v1,
    variable_key,
)
from hvd_tf._internal.counts import is_count
from hvd_tf._internal.names import GRADIENT_PREFIX, InstanceName, gradient_names
from hvd_tf._internal.runtime import Average, ProcessSet, global_process_set
from hvd_tf.compression import (
    Compression,
    apply_compression,
    undo_compression,
    wire_dtype_for,
)
from hvd_tf.ops.arguments import on_device
from hvd_tf.process_sets import registered

Gradient = Union[tf.Tensor, tf.IndexedSlices, None]
Groups = Union[int, Sequence[Sequence[Variable]], None]


def plan_groups(keys: Sequence[Any], dtypes: Sequence[tf.DType], groups: Groups) -> list[list[int]]:
    """Which of n gradients travel and fail together: lists of positions, each position once.

    keys has the `variable_key` of each gradient's variable, and dtypes the dtype of each gradient.
    groups is None (each gradient on its own), n (n runs of neighbours of nearly equal length), or
    lists of variables (these groups, and every other variable on its own). Gradients of different
    dtypes never share a group.
    """
    count = len(keys)
    if groups is None:
        return [[i] for i in range(count)]
    if isinstance(groups, int):
        bounds = [count * g // groups for g in range(groups + 1)]
        numbers = [next(g for g in range(groups) if i < bounds[g + 1]) for i in range(count)]
    else:
        of_key = {variable_key(v): g for g, group in enumerate(groups) for v in group}
        numbers = [of_key.get(key, len(groups) + i) for i, key in enumerate(keys)]
    plan: dict[tuple[int, tf.DType], list[int]] = {}
    for i, (number, dtype) in enumerate(zip(numbers, dtypes)):
        plan.setdefault((number, dtype), []).append(i)
    return list(plan.values())


def checked_groups(groups: Groups, num_groups: int) -> Groups:
    """The `groups` argument, with its deprecated form `num_groups` folded in.

    Raises ValueError for anything but None, a number above 0, or lists of different variables.
    """
    if num_groups:
        warnings.warn("num_groups is deprecated: pass groups", DeprecationWarning, stacklevel=4)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if is_count(groups):
        return int(cast(int, groups))
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, (list, tuple)) for group in groups
    ):
        raise ValueError(
            f"groups must be a number above 0 or a list of lists of variables. Received: {groups!r}"
        )
    groups = [[part for variable in group for part in parts_of(variable)] for group in groups]
    seen = set()
    for variable in (v for group in groups for v in group):
        if variable_key(variable) in seen:
            raise ValueError(
                f"groups holds the variable '{tf_variable(variable).name}' twice: keep it in one "
                "list"
            )
        seen.add(variable_key(variable))
    return groups


def checked_layers(layers: Any) -> list[Any]:
    """The `local_layers` argument as a list.

    Raises ValueError for anything but None, a Keras layer, or what layers can be taken from.
    """
    if layers is None:
        return []
    several = isinstance(layers, Iterable) and not isinstance(layers, str)
    listed = list(layers) if several and not is_keras_layer(layers) else [layers]
    for layer in listed:
        if not is_keras_layer(layer):
            raise ValueError(
                f"local_layers must be a Keras layer or a list of them. Received: {layer!r}"
            )
    return listed


class GradientReducer:
    """Reduces lists of gradients over the ranks of a process set.

    Its arguments are those of `DistributedOptimizer`. It may be made before `init`, but reducing
    needs `init`. `name` becomes a part of the names that ranks match gradients by. Reducers that
    are made anew for each step share an InstanceName.
    """

    def __init__(
        self,
        name: Union[str, InstanceName],
        *,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: Groups = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError(
                "gradient_predivide_factor divides before an average is formed, so it needs "
                f"op=Average. Received: gradient_predivide_factor={gradient_predivide_factor}, "
                f"op={op}"
            )
        if gradient_predivide_factor == 0.0:
            raise ValueError("gradient_predivide_factor must not be 0")
        self.process_set = process_set
        self.sparse_as_dense = sparse_as_dense
        self._instance = InstanceName(name) if isinstance(name, str) else name
        self._device_dense = device_dense
        self._device_sparse = device_sparse
        self._compression = compression
        self._op = op
        self._prescale = 1.0 / gradient_predivide_factor
        self._postscale = float(gradient_predivide_factor)
        self._groups = checked_groups(groups, num_groups)
        self.scales_local = scale_local_gradients
        self._local_variables: dict[Any, Variable] = {}
        self._local_layers: list[Any] = []

    def register_local_var(self, variable: Variable) -> None:
        """Keeps this variable's gradient on its rank; if scaled, divided by the set's size."""
        for part in parts_of(variable):
            self._local_variables[variable_key(part)] = part

    def register_local_layer(self, layer: Any) -> None:
        """The same for the trainable weights of a Keras layer, which may be built later."""
        self._local_layers.append(layer)

    @property
    def local_variables(self) -> list[Variable]:
        """Those registered by now."""
        return list(self._local_variables.values())

    def is_local(self, variable: Variable) -> bool:
        """Whether this variable's gradient stays on its rank."""
        for layer in self._local_layers:
            for weight in layer.trainable_weights:
                self.register_local_var(weight)
        return variable_key(variable) in self._local_variables

    def densify(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """The gradients. With sparse_as_dense, IndexedSlices are made dense."""
        if not self.sparse_as_dense:
            return list(gradients)
        return [tf.convert_to_tensor(g) if _is_sparse(g) else g for g in gradients]

    def prepare(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> list[Gradient]:
        """What a rank's own step needs before it: dense where asked, and local ones scaled."""
        result = self.densify(gradients)
        this_set = registered(self.process_set)
        if this_set.size == 1 or this_set.rank < 0:
            return result
        return [
            self._scaled_local(gradient, this_set.size)
            if gradient is not None and self.is_local(variable)
            else gradient
            for gradient, variable in zip(result, variables)
        ]

    def reduce(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Variable],
        names: Optional[Sequence[str]] = None,
    ) -> list[Gradient]:
        """Reduces the gradients. Each keeps its place, dtype and shape. None stays None.

        A rank outside the process set gets its own gradients back. So does the only rank of a set.
        Nothing is added to the graph then. IndexedSlices stay sparse: the result has one row for
        each index of any rank, in ascending order. They are not pre-divided. Of compressors the
        built-in ones apply to their values.

        Every rank of the set must pass gradients of the same variables in the same order. They are
        matched by `names`, which all differ. None: by `gradient_names`.

        Raises ValueError before `init`, for an unregistered process set, and where XLA compiles.
        """
        result = self.densify(gradients)
        this_set = registered(self.process_set)
        if this_set.size == 1 or this_set.rank < 0:
            return result
        shared = [g for g, v in zip(result, variables) if g is not None and not self.is_local(v)]
        if shared and is_traced_for_xla():
            raise ValueError(
                "XLA cannot compile a reduction over ranks: take gradients outside of what "
                "jit_compile=True compiles, and compile a Keras model with jit_compile=False"
            )
        names = gradient_names(variables) if names is None else names
        keys = [variable_key(variable) for variable in variables]
        dense: list[int] = []
        instance = self._instance.for_call(this_set.serial, variables)
        prefix = f"{GRADIENT_PREFIX}{instance}/"
        with v1.name_scope(f"{self._instance.name}_Allreduce"):
            for i, gradient in enumerate(result):
                if gradient is None:
                    continue
                if self.is_local(variables[i]):
                    result[i] = self._scaled_local(gradient, this_set.size)
                elif _is_sparse(gradient):
                    result[i] = self._reduced_slices(gradient, prefix + names[i])
                else:
                    dense.append(i)
            self._reduce_dense(result, dense, keys, lambda i: prefix + names[i])
        return result

    def _scaled_local(self, gradient: Gradient, set_size: int) -> Gradient:
        if not self.scales_local:
            return gradient
        return map_values(gradient, lambda values: values / tf.cast(set_size, values.dtype))

    def _reduced_slices(self, slices: tf.IndexedSlices, tensor_name: str) -> tf.IndexedSlices:
        with on_device(self._device_sparse):
            return ops.sparse_allreduce(
                slices,
                op=self._op,
                compression=self._compression,
                process_set=self.process_set,
                tensor_name=tensor_name,
                name=None,
            )

    def _reduce_dense(
        self,
        gradients: list[Gradient],
        dense: list[int],
        keys: list[Any],
        tensor_name: Callable[[int], str],
    ) -> None:
        """Replaces the gradients at the positions `dense`."""
        with on_device(self._device_dense):
            packed = [
                apply_compression(tf.convert_to_tensor(gradients[i]), self._compression)
                for i in dense
            ]
            dtypes = [tensor.dtype for tensor, _ in packed]
            plan = plan_groups([keys[i] for i in dense], dtypes, self._groups)
            for group in plan:
                name = tensor_name(dense[group[0]])
                if len(group) > 1:  # named after its first member: errors show the name
                    name += f" and {len(group) - 1} more"
                reduced = ops.dense_allreduce(
                    [packed[m][0] for m in group],
                    op=self._op,
                    prescale_factor=self._prescale,
                    postscale_factor=self._postscale,
                    wire_dtype=wire_dtype_for(self._compression, dtypes[group[0]]),
                    process_set=self.process_set,
                    tensor_name=name,
                )
                for m, tensor in zip(group, reduced):
                    gradients[dense[m]] = undo_compression(tensor, packed[m][1], self._compression)


def _is_sparse(gradient: Gradient) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def map_values(gradient: Gradient, fn: Callable[[tf.Tensor], tf.Tensor]) -> Gradient:
    """Applies `fn` to a dense gradient, or to the values of IndexedSlices."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(gradient)
