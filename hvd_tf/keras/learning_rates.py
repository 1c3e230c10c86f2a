# SPDX-License-Identifier: Apache-2.0
"""Callbacks for `fit` that set the learning rate by the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf._internal.compat.keras import learning_rate_of, scale_momentum, set_learning_rate
from hvd_tf._internal.keras.epochs import batches_before, joined, steps_of
from hvd_tf._internal.runtime import rank, size

Logs = Optional[dict[str, Any]]
Multiplier = Union[float, Callable[[float], Any]]


class LearningRateScheduleCallback(tf.keras.callbacks.Callback):
    """Multiplies a learning rate by a factor that depends on the epoch."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
        start_epoch: int = 0,
        end_epoch: Optional[int] = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
    ) -> None:
        """For one training.

        Args:
          initial_lr: the learning rate that is multiplied.
          multiplier: a number m, for m ** (epoch - start_epoch), or a function of the epoch, such
            as a LearningRateSchedule. Without staircase the epoch has a fraction.
          start_epoch: the first epoch in which the rate is set.
          end_epoch: the first epoch in which it is not set any more. None: there is none.
          staircase: set it at the beginning of epochs only, else before every batch.
          momentum_correction: scale a momentum's sum with the rate, as Goyal et al. 2017 do.
          steps_per_epoch: needed without staircase where `fit` does not know it.

        Raises:
          ValueError: there is no initial_lr.
        """
        super().__init__()
        self._supports_tf_logs = True  # it looks at no batch's logs: Keras 2 need not fetch them
        if initial_lr is None:
            raise ValueError("initial_lr is None: pass the learning rate that is multiplied")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier: Callable[[float], Any] = multiplier
        else:
            base = float(multiplier)
            self.multiplier = lambda epoch: base ** (epoch - self.start_epoch)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Finds out how many steps an epoch has."""
        if not self.staircase and not self.steps_per_epoch:
            if self.model in joined:
                raise ValueError(
                    f"{type(self).__name__} needs steps_per_epoch=, the same on every rank: with "
                    "JoinCallback ranks have different numbers of batches, and so other rates"
                )
            self.steps_per_epoch = steps_of(self) or _batches_of(self)
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} needs steps_per_epoch=: how many batches an epoch has "
                    "is not known"
                )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Notes the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Sets the rate: in an epoch's first batch, or in each."""
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if self.staircase:
            if batch == 0:
                self._adjust(float(self.current_epoch))
        else:
            assert self.steps_per_epoch is not None
            batch += batches_before(self, self.steps_per_epoch)
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Reports the rate as `lr`."""
        if logs is not None:
            logs["lr"] = learning_rate_of(self.model.optimizer)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before = learning_rate_of(optimizer)
        after = self.initial_lr * float(self.multiplier(epoch))
        set_learning_rate(optimizer, after)
        if self.momentum_correction and before > 0 and not math.isclose(before, after):
            scale_momentum(optimizer, after / before)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Goes from the learning rate of one process to `initial_lr` in the first epochs.

    This is the gradual warm-up of Goyal et al. 2017, "Accurate, Large Minibatch SGD":
    lr = initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1), where `epoch` has a fraction.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ) -> None:
        """Args as for `LearningRateScheduleCallback`; verbose=1 prints the end on rank 0."""

        def multiplier(epoch: float) -> float:
            # The rate that is right at the end of the batch.
            assert self.steps_per_epoch is not None
            epoch += 1.0 / self.steps_per_epoch
            return 1.0 / size() * (epoch * (size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Reports the rate, and on rank 0 the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            if rank() == 0:
                rate = learning_rate_of(self.model.optimizer)
                print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def _batches_of(callback: Any) -> int:
    """In an epoch of arrays, of which Keras tells their length in a graph of TF 1. 0: unknown."""
    params = getattr(callback, "params", None) or {}
    samples, batch_size = params.get("samples"), params.get("batch_size")
    return math.ceil(samples / batch_size) if samples and batch_size else 0
