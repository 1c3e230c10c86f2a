# SPDX-License-Identifier: Apache-2.0
"""What distributed optimizers of TF 1 share: all but the gradients is the wrapped optimizer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hvd_tf._internal.compat import Variable, v1
from hvd_tf._internal.gradients import Gradient, GradientReducer
from hvd_tf._internal.runtime import ProcessSet
from hvd_tf._internal.shown_module import is_horovod, text_of

Optimizer = Any  # of tf.compat.v1.train
GradsAndVars = Sequence[tuple[Any, Variable]]


class OptimizerWrapper(v1.train.Optimizer):
    """Does nothing itself: `compute_gradients` and `apply_gradients` are its subclasses'.

    It owns no variable. The wrapped optimizer makes, names, saves and restores slots. So a
    checkpoint fits the model with and without this wrapper.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        # Called for attributes that neither this object nor its class has. `self._optimizer` itself
        # may be missing: copy and pickle ask before __init__.
        if name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    # What programs of Horovod look at.

    def __repr__(self) -> str:
        return text_of(self, "horovod.tensorflow") if is_horovod() else super().__repr__()

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce."""
        return self._reducer.process_set

    @property
    def _local_vars(self) -> list[Variable]:
        return self._reducer.local_variables

    def _allreduce_grads(
        self, grads: Sequence[Gradient], vars: Sequence[Variable]
    ) -> list[Gradient]:
        return self._reducer.reduce(grads, vars)

    def register_local_var(self, var: Variable) -> None:
        """Keeps this variable's gradient on its rank.

        It is not reduced. It is divided by the size of the process set, unless
        scale_local_gradients is False.
        """
        self._reducer.register_local_var(var)

    def get_slot(self, var: Variable, name: str) -> Any:
        """The wrapped optimizer's slot variable of that name for `var`, or None."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The wrapped optimizer's slot names."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        """The wrapped optimizer's variables: slots, and accumulators such as beta1_power."""
        return self._optimizer.variables()

    # tf.train.Checkpoint asks an optimizer for these. TensorFlow's base class would answer from its
    # own slots, which are empty here.

    def _trackable_children(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._trackable_children(*args, **kwargs)

    def _lookup_dependency(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._lookup_dependency(*args, **kwargs)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer._create_or_restore_slot_variable(*args, **kwargs)

    def _restore_slot_variable(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer._restore_slot_variable(*args, **kwargs)

    @property
    def _deferred_dependencies(self) -> Any:
        self._optimizer._maybe_initialize_trackable()
        return self._optimizer._deferred_dependencies
