# SPDX-License-Identifier: Apache-2.0
"""What is private in the loss scaling of Keras 2 and 3: its optimizer, and when it looks."""

from __future__ import annotations

import functools
from typing import Any

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


def patch_loss_scaling_of_keras_2(optimizer_class: Any, marker: Any) -> None:
    """The same for both families of Keras 2.

    Around an optimizer of the class `marker` it calls `apply_within`. Else the scale would follow
    what this rank has added up so far, and would change between the passes of one sum.
    """
    module = keras_2_module(optimizer_class, "mixed_precision.loss_scale_optimizer")
    if module is not None:
        _patch_apply_gradients(module.LossScaleOptimizer, marker)
        _patch_apply_gradients(module.LossScaleOptimizerV3, marker)


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
