# SPDX-License-Identifier: Apache-2.0
"""`DistributedGradientTape`: a tf.GradientTape whose gradients are reduced over the ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import Variable
from hvd_tf._internal.gradients import Gradient, GradientReducer, Groups, checked_layers
from hvd_tf._internal.names import InstanceName
from hvd_tf._internal.runtime import Average, ProcessSet, global_process_set
from hvd_tf.compression import Compression

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]

# A program may make a tape for every step. All of them are one to the other ranks.
_NAME = InstanceName("DistributedGradientTape")

Pairs = list[tuple[Variable, Gradient]]


class _Reducing:
    """What a distributed tape has beside its own class: the reduction in `gradient`."""

    # Not in __dict__, which a tape shares with the one that it wraps.
    __slots__ = ("_reducer", "process_set")

    process_set: ProcessSet
    _reducer: GradientReducer

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: Any = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The tape's own gradients, reduced over the ranks of the process set.

        Every rank of the set must call it for the same sources in the same order.

        Args:
          target: tensors, or a nested structure of them, to be differentiated.
          sources: variables or tensors, or a nested structure of them.
          output_gradients: one for each element of `target`, or None.
          use_generic_names: ranks match gradients by their places, not by the variables' names.
            Also takes a tf.UnconnectedGradients: it has this place in TensorFlow's own method.
          unconnected_gradients: what a source that the target does not depend on gets, also as
            "none" or "zero".

        Returns:
          Gradients in the structure of `sources`, each of its source's shape and dtype, or None.

        Raises:
          ValueError: before `init`, for an unregistered process set, or where XLA compiles and the
            set has several ranks.
        """
        gradients = self._own_gradients(
            target, sources, output_gradients, use_generic_names, unconnected_gradients
        )
        reduced = self._reduced(gradients, tf.nest.flatten(sources), use_generic_names)
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: Any = False,
    ) -> tuple[Pairs, Pairs]:
        """`gradient` as two lists of (source, gradient): of local sources, and of all others.

        Each list has the order of `sources`. Gradients of local sources are this rank's own. They
        are divided by the size of the process set, unless scale_local_gradients is False.
        """
        gradients = self._own_gradients(target, sources, output_gradients, use_generic_names)
        flat = tf.nest.flatten(sources)
        pairs = list(zip(flat, self._reduced(gradients, flat, use_generic_names)))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reducer.is_local(pair[0])]

    def register_local_source(self, source: Variable) -> None:
        """Keeps this variable's gradient on its rank.

        It is not reduced. It is divided by the size of the process set, unless
        scale_local_gradients is False.
        """
        self._reducer.register_local_var(source)

    def _allreduce_grads(
        self,
        grads: Sequence[Gradient],
        vars: Optional[Sequence[Variable]] = None,
        use_generic_names: bool = False,
    ) -> list[Gradient]:
        """The reduction alone, under Horovod's name. Without `vars` places are names."""
        sources = list(grads if vars is None else vars)
        return self._reduced(list(grads), sources, use_generic_names or vars is None)

    def _own_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any,
        use_generic_names: Any,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> list[Gradient]:
        if isinstance(use_generic_names, (str, tf.UnconnectedGradients)):
            unconnected_gradients = use_generic_names
        # A tape of the program's own may have no such argument.
        chosen = tf.UnconnectedGradients(unconnected_gradients)
        more = [] if chosen is tf.UnconnectedGradients.NONE else [chosen]
        own: Any = super()
        return tf.nest.flatten(own.gradient(target, sources, output_gradients, *more))

    def _reduced(
        self, gradients: list[Gradient], sources: list[Variable], use_generic_names: Any
    ) -> list[Gradient]:
        names = None
        if use_generic_names is True:
            names = [f"gradient_{place}" for place in range(len(sources))]
        return self._reducer.reduce(gradients, sources, names)


def DistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps a tape so that `gradient` returns the same gradients on all ranks.

    The tape may have recorded already, record now, or record later:
    `with DistributedGradientTape(tape)`. Both are one recording from then on.

    Args:
      gradtape: a tf.GradientTape, or an object of a class derived from it.
      device_dense: the device that reduces dense gradients; "" leaves the choice to TensorFlow.
      device_sparse: the same for IndexedSlices.
      compression: `Compression.none`, `.fp16` or `.bf16`, also for the values of IndexedSlices; or
        a class with `compress` and `decompress`, which is called for dense gradients only.
      sparse_as_dense: make IndexedSlices dense before they are reduced.
      op: `Average`, `Sum`, `Adasum`, `Min`, `Max` or `Product`; IndexedSlices take the first two.
      gradient_predivide_factor: divide gradients by this factor before they are summed, and by
        size/factor afterwards. Needs op=Average.
      num_groups: deprecated, use groups.
      groups: dense gradients that travel and fail together: a number of groups, or lists of
        variables (others travel on their own). Different dtypes never share a group.
      process_set: the ranks that reduce; others keep their own gradients.
      scale_local_gradients: see `register_local_source` of the returned tape.

    Returns:
      A tape of a class derived from that of `gradtape`. It takes over what that has recorded.

    Raises:
      ValueError: for anything that is no tape, a predivide factor without Average, or malformed
        groups.
      NotImplementedError: IndexedSlices with another op than `Average` and `Sum`.
    """
    return _wrapped(
        gradtape,
        GradientReducer(
            _NAME,
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            op=op,
            gradient_predivide_factor=gradient_predivide_factor,
            groups=groups,
            num_groups=num_groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        ),
    )


def PartialDistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedGradientTape` in which the weights of some layers stay on their rank.

    Args, errors and result are those of `DistributedGradientTape`, but for `local_layers`: a Keras
    layer or several. Their trainable weights are local sources (`register_local_source`).
    Layers may be built later.

    Raises:
      ValueError: also where `local_layers` has anything but layers.
    """
    layers = checked_layers(local_layers)
    tape = DistributedGradientTape(
        gradtape,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for layer in layers:
        tape._reducer.register_local_layer(layer)
    return tape


def _wrapped(gradtape: Any, reducer: GradientReducer) -> Any:
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"gradtape must be a tf.GradientTape. Received: {gradtape!r}")
    if isinstance(gradtape, _Reducing):
        raise ValueError("gradtape is a distributed tape already: wrap it once")
    base: Any = type(gradtape)
    derived = _derived(base)
    tape = derived.__new__(derived)
    # Both are one recording. Either may stop it, and it must not stop twice: TensorFlow would end
    # the process.
    tape.__dict__ = vars(gradtape)
    tape.process_set = reducer.process_set
    tape._reducer = reducer
    return tape


@functools.cache
def _derived(base: type) -> Any:
    """The class of distributed tapes of a class. A program may wrap a tape in every step."""
    return type(base.__name__, (_Reducing, base), {"__module__": __name__})
