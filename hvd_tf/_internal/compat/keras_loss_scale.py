# SPDX-License-Identifier: Apache-2.0
"""What is private in the loss scaling of Keras 2 and 3: its optimizer, when it looks, copies."""

from __future__ import annotations

import functools
from typing import Any, Optional

from hvd_tf._internal.compat.keras import keras_2_module


def optimizer_within(optimizer: Any) -> Any:
    """The one that a LossScaleOptimizer is around, None for any other optimizer."""
    scales_loss = hasattr(optimizer, "dynamic_growth_steps")
    return getattr(optimizer, "inner_optimizer", None) if scales_loss else None


def put_within(scaling: Any, optimizer: Any) -> None:
    """Have a LossScaleOptimizer be around another optimizer, which shares all state of its own."""
    if isinstance(getattr(type(scaling), "inner_optimizer", None), property):  # Keras 2
        scaling._optimizer = optimizer
        scaling._trackable = optimizer
    else:
        scaling.inner_optimizer = optimizer


class _Config(dict[str, Any]):
    """What `get_config` returns. Keras saves a plain dictionary of the same content."""

    within: Optional[type] = None
    """The class of the distributed optimizer within, which no other process has."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@functools.cache
def _patch_configs(loss_scaling: Any, marker: Any) -> None:
    """Have copies by `from_config` reduce where their originals do.

    The optimizer within is known to Keras by its plain class. A file has that alone.
    """
    original_get, original_from = loss_scaling.get_config, loss_scaling.from_config.__func__

    @functools.wraps(original_get)
    def get_config(self: Any) -> dict[str, Any]:
        config = _Config(original_get(self))
        if isinstance(self.inner_optimizer, marker):
            config.within = type(self.inner_optimizer)
        return config

    @functools.wraps(original_from)
    def from_config(cls: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        within: Any = getattr(config, "within", None)
        scaling = original_from(cls, config, *args, **kwargs)
        if within is not None:
            put_within(scaling, within.from_config(optimizer_within(scaling).get_config()))
        return scaling

    loss_scaling.get_config = get_config
    loss_scaling.from_config = classmethod(from_config)


@functools.cache
def patch_loss_scaling_of_keras_3(marker: Any) -> None:
    """Have LossScaleOptimizer look at reduced gradients only. Does nothing the second time.

    Around an optimizer of the class `marker` it calls `apply_within`. Else that would reduce under
    a condition that differs between ranks: whether this rank's own gradients are finite.
    """
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    original = LossScaleOptimizer.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not isinstance(inner, marker):
            original(self, grads, trainable_variables)
            return
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables
        inner.apply_within(
            self, grads, variables, lambda reduced: original(self, reduced, trainable_variables)
        )

    LossScaleOptimizer.apply = apply
    _patch_configs(LossScaleOptimizer, marker)
    _patch_copies_of_keras_3(LossScaleOptimizer, marker)


def _patch_copies_of_keras_3(loss_scaling: Any, marker: Any) -> None:
    """The same for copies by `copy`, which Keras makes by saving. Older versions do not."""
    if loss_scaling.__reduce__ is object.__reduce__:
        return

    def copied(self: Any, memo: Optional[dict[int, Any]] = None) -> Any:
        if isinstance(self.inner_optimizer, marker):
            made = type(self).from_config(self.get_config())
        else:
            make, arguments = self.__reduce__()
            made = make(*arguments)
        if memo is not None:
            memo[id(self)] = made
        return made

    loss_scaling.__copy__ = loss_scaling.__deepcopy__ = copied


def patch_loss_scaling_of_keras_2(optimizer_class: Any, marker: Any) -> None:
    """The same for both families of Keras 2.

    Around an optimizer of the class `marker` it calls `apply_within`. Else the scale would follow
    what this rank has added up so far, and would change between the passes of one sum.
    """
    module = keras_2_module(optimizer_class, "mixed_precision.loss_scale_optimizer")
    if module is not None:
        for loss_scaling in (module.LossScaleOptimizer, module.LossScaleOptimizerV3):
            _patch_apply_gradients(loss_scaling, marker)
            _patch_configs(loss_scaling, marker)


@functools.cache
def _patch_apply_gradients(loss_scaling: Any, marker: Any) -> None:
    original = loss_scaling.apply_gradients

    @functools.wraps(original)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        inner = self.inner_optimizer
        if not isinstance(inner, marker):
            return original(self, grads_and_vars, *args, **kwargs)
        pairs = list(grads_and_vars)  # it may be an iterator
        return inner.apply_within(self, pairs, lambda: original(self, pairs, *args, **kwargs))

    loss_scaling.apply_gradients = apply_gradients
