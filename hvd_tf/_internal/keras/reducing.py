# SPDX-License-Identifier: Apache-2.0
"""`Reducing`: what all distributed optimizers of Keras have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional
from weakref import WeakKeyDictionary

import tensorflow as tf

from hvd_tf._internal.compat import Variable, is_traced_for_xla
from hvd_tf._internal.compat.keras_optimizers import optimizers_of
from hvd_tf._internal.gradients import Gradient, GradientReducer
from hvd_tf._internal.keras.passes import Passes
from hvd_tf._internal.names import names_by_place
from hvd_tf._internal.runtime import ProcessSet
from hvd_tf._internal.shown_module import is_horovod, text_of

MODULE_IN_HOROVOD = "horovod._keras"

# By optimizer. Keras would track an attribute, and copy it with the optimizer's others.
_passes: WeakKeyDictionary[Any, Passes] = WeakKeyDictionary()


class Reducing:
    """What a distributed optimizer has beside its own class.

    The reduction belongs to the class, which is made for one optimizer. So copies by `from_config`
    reduce in the same way. Passes belong to the instance: each adds up its own.
    """

    _hvd_reducer: GradientReducer
    _hvd_passes: int  # how many are added up
    _hvd_averages_passes: bool
    _HAS_AGGREGATE_GRAD = True

    def __repr__(self) -> str:
        return text_of(self, MODULE_IN_HOROVOD) if is_horovod() else super().__repr__()

    @property
    def _agg_helper(self) -> Optional[Passes]:
        """Horovod's name. None: each pass is reduced."""
        if self._hvd_passes == 1:
            return None
        if self not in _passes:
            _passes[self] = Passes(self._hvd_reducer, self._hvd_passes, self._hvd_averages_passes)
        return _passes[self]

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce."""
        return self._hvd_reducer.process_set

    @property
    def scale_local_gradients(self) -> bool:
        """Whether gradients that stay on their rank are divided by the set's size."""
        return self._hvd_reducer.scales_local

    @property
    def pass_state(self) -> list[tf.Variable]:
        """The variables beside the optimizer's own that must be equal on all ranks."""
        return [] if self._agg_helper is None else self._agg_helper.state

    def _hvd_reset_passes(self) -> None:
        """Begin with the first of several passes, in eager code. Every rank does, or none."""
        if self._agg_helper is not None:
            self._agg_helper.reset()

    def _hvd_begin_fit(self, variables: Sequence[Variable]) -> None:
        """Call it on every rank with what a `fit` is to train."""
        if self._agg_helper is not None:
            self._agg_helper.begin_fit(variables)

    def _hvd_end_fit(self, variables: Sequence[Variable]) -> None:
        """Call it on every rank with what a `fit` has trained."""
        if self._agg_helper is not None:
            self._agg_helper.end_fit(variables)

    @property
    def _local_vars(self) -> list[Variable]:
        return self._hvd_reducer.local_variables

    def register_local_var(self, var: Variable) -> None:
        """Keep this variable's gradient on its rank.

        It is not reduced. It is divided by the size of the process set, unless
        scale_local_gradients is False.
        """
        self._hvd_reducer.register_local_var(var)

    def _allreduce(self, grads: Sequence[Gradient], vars: Sequence[Variable]) -> list[Gradient]:
        """The reduction alone, under Horovod's name. With several passes, that of their sums."""
        check_place()
        if self._agg_helper is not None:
            return self._agg_helper.aggregate(grads, vars)
        return self._hvd_reducer.reduce(grads, vars, names_by_place(vars))


def check_place() -> None:
    """Raises ValueError where gradients cannot be reduced."""
    if tf.distribute.has_strategy():
        raise ValueError(
            "a distributed optimizer does not work in the scope of a tf.distribute.Strategy, which "
            "would reduce the gradients a second time: leave the strategy out"
        )
    if is_traced_for_xla():
        raise ValueError(
            "XLA cannot compile a reduction over ranks: pass jit_compile=False to compile()"
        )


def reducing_of(model: Any) -> Optional[Reducing]:
    """The distributed optimizer of a model, the first of several. None: it has none."""
    return next(iter(all_reducing_of(model)), None)


def all_reducing_of(model: Any) -> list[Reducing]:
    """The distributed optimizers of a model, also those within one for loss scaling."""
    found: dict[int, Reducing] = {}
    for optimizer in optimizers_of(model):
        # First itself: it may be around one for loss scaling, and within that is none.
        candidates = (optimizer, getattr(optimizer, "inner_optimizer", None))
        one = next((one for one in candidates if isinstance(one, Reducing)), None)
        if one is not None:
            found[id(one)] = one
    return list(found.values())
