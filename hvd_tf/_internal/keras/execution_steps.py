# SPDX-License-Identifier: Apache-2.0
"""The number of steps in an execution, which all ranks need to have in common.

A step's place in its execution is a part of the names that ranks match gradients by. With
steps_per_execution="auto" Keras 2 changes the number by the clock, so the first rank's clock counts
for all.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat.keras_fit import (
    is_tuned,
    replace_step_tuner,
    step_tuner_of,
    steps_of_execution,
    steps_variable,
    tune_instead,
)
from hvd_tf._internal.facts import Facts, check_same, exchange
from hvd_tf._internal.keras.any_keras import AnyKerasCallback
from hvd_tf._internal.runtime import ProcessSet
from hvd_tf.process_sets import registered

# A meeting costs as much as some small steps, and Keras tunes once in 50 s.
_EXECUTIONS_PER_MEETING = 16


def steps_fact(model: Any) -> Any:
    """What a rank tells about its executions."""
    return "auto" if is_tuned(model) else steps_of_execution(model)


def shared_steps(
    model: Any, everyones: list[Facts], process_set: ProcessSet, undone: ExitStack
) -> list[tf.keras.callbacks.Callback]:
    """The callbacks that see to it that all ranks make equally long executions.

    Args:
      model: compiled.
      everyones: the facts of all ranks: "steps", "is_list" and "joins".
      process_set: the ranks.
      undone: gets what is to be called after the `fit`.

    Raises:
      ValueError: on all ranks, if they differ in steps_per_execution, or have it tuned and have a
        JoinCallback.
    """
    what = "compile: steps_per_execution"
    check_same(everyones, "steps", what, "Pass the same on every rank")
    if not is_tuned(model):
        return []
    if everyones[0]["joins"]:
        raise ValueError(
            'JoinCallback with steps_per_execution="auto": ranks with different numbers of '
            "batches cannot agree on the number of steps. Pass a number to compile"
        )
    tuner = step_tuner_of(model)
    undone.callback(replace_step_tuner, model, tuner)
    replace_step_tuner(model, _NoTuner())
    if not all(theirs["is_list"] for theirs in everyones):
        return []  # nobody can add a callback, so the number stays
    wish: Optional[tf.Variable] = None
    if registered(process_set).rank == 0:
        wish = tf.Variable(steps_of_execution(model), dtype=tf.int64, trainable=False)
        undone.callback(tune_instead, tuner, steps_variable(model))
        tune_instead(tuner, wish)
        replace_step_tuner(model, tuner)
    return [_SharedSteps(process_set, wish)]


class _NoTuner:
    """Takes the place of the tuner on all ranks but the first."""

    def start(self) -> None:
        """Tune nothing."""

    def stop(self) -> None:
        """There is nothing to stop."""


class _SharedSteps(AnyKerasCallback):
    """Gives all ranks the number of steps that the first one has found."""

    def __init__(self, process_set: ProcessSet, wish: Optional[tf.Variable]) -> None:
        """wish: what the first rank has found. None on the others."""
        super().__init__()
        self._process_set = process_set
        self._wish = wish
        self._executions = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin with the same number. An evaluation may have changed it."""
        self._share()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Meet every few executions."""
        self._executions += 1
        if self._executions % _EXECUTIONS_PER_MEETING == 0:
            self._share()

    def _share(self) -> None:
        steps = 0 if self._wish is None else int(self._wish.numpy())
        everyones = exchange({"steps": steps}, "fit/steps", self._process_set)
        steps_variable(self.model).assign(max(1, everyones[0]["steps"]))  # Keras rounds down to 0
