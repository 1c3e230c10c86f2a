# SPDX-License-Identifier: Apache-2.0
"""What is private in the `fit` of Keras 2 and 3: its class, its callbacks, steps and backups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from hvd_tf._internal.compat.keras import keras_2_module, trainer_of_keras_3

# Callbacks write files in these methods, beside those that `fit` calls, and in these properties.
SAVE_METHOD = "_save_model"  # of ModelCheckpoint, whose other methods call it
FILE_METHODS = (SAVE_METHOD, "set_model")
FILE_WRITERS = ("_train_writer", "_val_writer")


def trainer_class(optimizer_class: Any) -> Any:
    """The class that has `fit`, in the Keras that an optimizer's class comes from, or None."""
    if not any(hasattr(optimizer_class, f"{part}compute_gradients") for part in ("", "_")):
        return trainer_of_keras_3("fit")
    training = keras_2_module(optimizer_class, "engine.training")
    return None if training is None else training.Model


def steps_variable(model: Any) -> Any:
    """The variable with the number of steps in an execution. None: of Keras 3, or not compiled."""
    return getattr(model, "_steps_per_execution", None)  # Keras 2.15 has a public name, too


def steps_of_execution(model: Any) -> int:
    """How many steps an execution has now."""
    steps = steps_variable(model)
    if hasattr(steps, "numpy"):
        return int(steps.numpy())
    return int(getattr(model, "steps_per_execution", None) or 1)


def step_tuner_of(model: Any) -> Any:
    """What changes the number of steps as time goes on. None: nothing does. Of Keras 2."""
    return model._steps_per_execution_tuner if is_tuned(model) else None


def is_tuned(model: Any) -> bool:
    """Whether Keras changes the number of steps by the clock. Of Keras 2."""
    names = ("autotune_steps_per_execution", "enable_tune_steps_per_execution")  # 2.15, 2.14
    return any(getattr(model, name, False) for name in names)


def replace_step_tuner(model: Any, tuner: Any) -> None:
    """Have `fit` start and stop this one."""
    model._steps_per_execution_tuner = tuner


def tune_instead(tuner: Any, steps: Any) -> None:
    """Have a tuner change this variable."""
    tuner._steps_per_execution = steps


def backup_position(model: Any) -> Optional[list[int]]:
    """Where BackupAndRestore goes on, after its on_train_begin. None: it has restored nothing."""
    state = getattr(model, "_training_state", None)
    if state is not None:  # Keras 2
        epoch, batch = (int(v.numpy()) for v in (state._ckpt_saved_epoch, state._ckpt_saved_batch))
        return [epoch, batch] if epoch >= 0 else None
    first: Optional[int] = getattr(model, "_initial_epoch", None)
    return None if first is None else [int(first)]


def share_backup(model: Any, of_owner: Callable[[Any], Any]) -> None:
    """Tell the other ranks the first epoch and step, once `fit` asks for them. Of Keras 2."""
    state = getattr(model, "_training_state", None)
    if state is not None:
        original = state.maybe_load_initial_counters_from_ckpt
        state.maybe_load_initial_counters_from_ckpt = lambda *args, **kwargs: tuple(
            of_owner([int(number) for number in original(*args, **kwargs)])
        )


def follow_backup(
    model: Any, position: Optional[list[int]], of_owner: Callable[[Any], Any]
) -> None:
    """Have `fit` begin where the owner's does."""
    if hasattr(model, "_training_state"):  # Keras 2
        model._training_state = _Followed(of_owner)
    elif position is not None:
        model._initial_epoch = position[0]


def forget_backup(model: Any) -> None:
    """Have the next `fit` begin where the program says."""
    if hasattr(model, "_maybe_load_initial_counters_from_ckpt"):  # Keras 2
        model._training_state = None
    else:
        model._initial_epoch = None


class _Followed:
    def __init__(self, of_owner: Callable[[Any], Any]) -> None:
        self._of_owner = of_owner

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> Any:
        return tuple(self._of_owner(None))


def had_no_batch(error: Exception) -> bool:
    """Whether Keras 2 has ended `fit` by this because an epoch had no batch. Only words tell."""
    return isinstance(error, ValueError) and "(Empty logs)" in str(error)
