# SPDX-License-Identifier: Apache-2.0
"""Makes an optimizer of Keras distributed: where each family of optimizers reduces.

| family                 | reduces in                          | clipping follows in |
|---|---|---|
| Keras 3                | `apply`                             | `apply`             |
| Keras 2                | `compute_gradients`                 | `apply_gradients`   |
| Keras 2, legacy        | `_compute_gradients`, `get_gradients` | `apply_gradients` |

`apply_gradients` of Keras 2 does not reduce, because programs call it with what a distributed tape
has reduced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_tf._internal.compat import Variable
from hvd_tf._internal.compat.keras import (
    backend_of_keras_3,
    build_optimizer,
    keep_registered_name,
    patch_trainer,
)
from hvd_tf._internal.compat.keras_loss_scale import (
    patch_loss_scaling_of_keras_2,
    patch_loss_scaling_of_keras_3,
)
from hvd_tf._internal.gradients import Gradient, GradientReducer
from hvd_tf._internal.keras.fit import patch_fit
from hvd_tf._internal.keras.reducing import MODULE_IN_HOROVOD, Reducing
from hvd_tf._internal.keras.unreduced import expect_no_more, warn_if_unreduced
from hvd_tf._internal.shown_module import is_horovod
from hvd_tf._internal.unique_rows import TakesUniqueRows, TakesUniqueRowsLegacy

GradsAndVars = list[tuple[Gradient, Variable]]

_IS_WRAPPED = "_hvd_is_wrapped"  # of an optimizer that shares its state with a distributed form


class _Keras2(TakesUniqueRows, Reducing):
    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> GradsAndVars:
        """The base's gradients, reduced over the ranks."""
        own: Any = super()
        return self._reduced_pairs(own.compute_gradients(loss, var_list, tape))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """The base's method. It does not reduce."""
        own: Any = super()
        warn_if_unreduced(self)
        if self._agg_helper is None:
            return own.apply_gradients(grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)  # it may be an iterator
        return self.apply_within(self, pairs, lambda: own.apply_gradients(pairs, *args, **kwargs))

    def apply_within(self, outer: Any, pairs: GradsAndVars, apply: Callable[[], Any]) -> Any:
        """Call `apply`, after a k-th pass only if there are several.

        outer: this optimizer, or one for loss scaling around it, which applies the pairs.
        """
        if self._agg_helper is None or self._agg_helper.is_applying:
            return apply()
        build_optimizer(outer, [variable for _, variable in pairs])  # below it is too late
        iterations: Any = self.iterations  # type: ignore[attr-defined]
        return self._applied(self._agg_helper.apply(apply, lambda: iterations.assign_add(1)))

    def _applied(self, done: tf.Tensor) -> Any:
        """What `apply_gradients` returns once `done` is there."""
        return self.iterations  # type: ignore[attr-defined]

    def _reduced_pairs(self, pairs: Any) -> GradsAndVars:
        expect_no_more(self)
        pairs = list(pairs)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs)
        return list(zip(self._allreduce(gradients, variables), variables))


class _Legacy(TakesUniqueRowsLegacy, _Keras2):
    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> GradsAndVars:
        own: Any = super()
        return self._reduced_pairs(own._compute_gradients(loss, var_list, grad_loss, tape))

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> GradsAndVars:
        """`minimize` without the update, reduced over the ranks."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def _applied(self, done: tf.Tensor) -> Any:
        return super()._applied(done) if tf.executing_eagerly() else tf.group(done)

    def get_gradients(self, loss: Any, params: Any) -> list[Gradient]:
        """The base's gradients, reduced over the ranks. For graphs of TF 1."""
        own: Any = super()
        params = tf.nest.flatten(params)
        return self._allreduce(own.get_gradients(loss, params), params)


class _Keras3(Reducing):
    _hvd_is_reduced = False

    def __copy__(self) -> _Keras3:
        """One of the same class. Keras copies by saving, which gives a plain optimizer.

        Keras' own copies have no slots either.
        """
        this: Any = self
        copied: _Keras3 = type(this).from_config(this.get_config())
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> _Keras3:
        memo[id(self)] = copied = self.__copy__()
        return copied

    def __reduce__(self) -> Any:
        """A pickle has a plain optimizer, as a file of Keras has. No module has this class."""
        own: Any = super()
        _, *rest = own.__reduce__()
        # The class that this one is derived from: it makes an optimizer of what was saved.
        plain: Any = next(cls for cls in type(self).__mro__ if not issubclass(cls, Reducing))
        return (plain._unpickle_model, *rest)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Reduce the gradients over the ranks, then apply them."""
        own: Any = super()
        grads = list(grads)
        if self._hvd_is_reduced or not grads:
            own.apply(grads, trainable_variables)
            return
        if trainable_variables is None:
            variables = self._trainable_variables  # type: ignore[attr-defined]
        else:
            variables = trainable_variables = list(trainable_variables)
        reduced = self._allreduce(grads, variables)
        self._apply_passes(self, variables, lambda: own.apply(reduced, trainable_variables))

    def _update_model_variables_moving_average(self, trainable_variables: Any) -> None:
        """Keras' own, for use_ema. It begins the averages at iteration 0, and passes count here."""
        own: Any = super()
        own._update_model_variables_moving_average(trainable_variables)
        this: Any = self
        if self._agg_helper is None or not this.use_ema:
            return
        is_first = this.iterations < this._hvd_passes
        for variable, average in zip(trainable_variables, this._model_variables_moving_average):
            if average is not None:
                average.assign(tf.where(is_first, variable, average))

    def apply_within(
        self, outer: Any, grads: Any, variables: Any, apply: Callable[[list[Gradient]], Any]
    ) -> None:
        """Call `apply` with reduced gradients, after a k-th pass only if there are several.

        In it this optimizer's `apply` takes gradients as they are.

        outer: an optimizer for loss scaling around this one. It applies gradients only where they
          are finite, and ranks may differ in that before the reduction.
        """
        variables = list(variables)
        reduced = self._allreduce(list(grads), variables)
        self._hvd_is_reduced = True
        try:
            self._apply_passes(outer, variables, lambda: apply(reduced))
        finally:
            self._hvd_is_reduced = False

    def _apply_passes(self, outer: Any, variables: Any, apply: Callable[[], Any]) -> None:
        if self._agg_helper is None:
            apply()
            return
        build_optimizer(outer, variables)  # under the condition below it is too late
        iterations: Any = self.iterations  # type: ignore[attr-defined]
        self._agg_helper.apply(apply, lambda: iterations.assign_add(1))


def distribute(
    optimizer: Any, reducer: GradientReducer, passes: int = 1, average_passes: bool = False
) -> Any:
    """The optimizer in a distributed form. They share all state: slots, iterations, rates.

    A template, which is wrapped again before it has any slots, gives each further one a state of
    its own. Only what `get_config` returns is theirs.

    Raises:
      ValueError: it is distributed already, or of a Keras whose backend is not TensorFlow, or both
        it and this one add up passes.
    """
    if isinstance(optimizer, Reducing):
        raise ValueError("optimizer is distributed already: wrap it once")
    own_passes = getattr(optimizer, "gradient_accumulation_steps", None)  # of Keras 3
    if passes > 1 and own_passes:
        raise ValueError(
            f"backward_passes_per_step={passes} of an optimizer that has "
            f"gradient_accumulation_steps={own_passes}: it counts passes, so leave out one of both"
        )
    base: Any = type(optimizer)
    if getattr(optimizer, _IS_WRAPPED, False) and not _is_built(optimizer):
        optimizer = base.from_config(optimizer.get_config())
    if hasattr(base, "_compute_gradients"):
        family: type[Reducing] = _Legacy
    elif hasattr(base, "compute_gradients"):
        family = _Keras2
    else:
        backend = backend_of_keras_3()
        if backend != "tensorflow":
            raise ValueError(
                f"the optimizer is of Keras with the backend {backend}: hvd_tf reduces gradients "
                "of TensorFlow. Set KERAS_BACKEND=tensorflow before Keras is imported"
            )
        patch_trainer(_Keras3)
        patch_loss_scaling_of_keras_3(_Keras3)
        family = _Keras3
    if family is not _Keras3:
        patch_loss_scaling_of_keras_2(base, _Keras2)
    patch_fit(base)
    names = {
        "__module__": base.__module__,
        "_hvd_reducer": reducer,
        "_hvd_passes": passes,
        "_hvd_averages_passes": average_passes,
    }
    # The metaclass is the base's: Keras 2 has one for loss scaling.
    derived = type(base)(base.__name__, (family, base), names)
    keep_registered_name(derived, base)
    distributed = derived.__new__(derived)
    vars(distributed).update(vars(optimizer))
    setattr(optimizer, _IS_WRAPPED, True)
    if is_horovod():  # the class has Keras' own, for Keras saves that
        vars(distributed)["__module__"] = MODULE_IN_HOROVOD
    return distributed


def _is_built(optimizer: Any) -> bool:
    """Whether it has slots: of Keras 3, of Keras 2, of its legacy family."""
    flags = ("built", "_built", "_hypers_created")
    return any(getattr(optimizer, flag, False) for flag in flags)
