# SPDX-License-Identifier: Apache-2.0
"""What is private in Keras 3: its backend's name, and two methods that need a hook."""

from __future__ import annotations

import functools
import sys
from typing import Any


def backend_of(cls: Any) -> str:
    """The backend of the Keras 3 that this class comes from, such as "tensorflow"."""
    keras = sys.modules[_package(cls)]
    return str(keras.backend.backend())


def patch_keras_3(marker: Any) -> None:
    """Make Keras 3 aware of optimizers of the class `marker`. Does nothing the second time.

    - compile(jit_compile="auto") chooses False for them. XLA cannot compile their reduction.
    - LossScaleOptimizer has its inner optimizer reduce before it looks for infinities. Its inner
      optimizer runs under a condition that differs between ranks before the reduction.
    """
    _patch_trainer(marker)
    _patch_loss_scaling(marker)


@functools.cache
def _patch_trainer(marker: Any) -> None:
    from keras.src.trainers.trainer import Trainer

    original = Trainer._resolve_auto_jit_compile

    @functools.wraps(original)
    def resolve(self: Any) -> bool:
        optimizer = getattr(self, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", None)
        if isinstance(optimizer, marker) or isinstance(inner, marker):
            return False
        return bool(original(self))

    Trainer._resolve_auto_jit_compile = resolve


@functools.cache
def _patch_loss_scaling(marker: Any) -> None:
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
        with inner.reduced(grads, variables) as reduced:
            original(self, reduced, trainable_variables)

    LossScaleOptimizer.apply = apply


def _package(cls: Any) -> str:
    return str(cls.__module__).partition(".")[0]
