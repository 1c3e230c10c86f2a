# SPDX-License-Identifier: Apache-2.0
"""What is private in the `fit` of Keras 2 and 3: the trainer's class, and the state of a backup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from hvd_tf._internal.compat.keras import keras_2_module


def trainer_class(optimizer_class: Any) -> Any:
    """The class that has `fit`, in the Keras that an optimizer's class comes from, or None."""
    if not any(hasattr(optimizer_class, f"{part}compute_gradients") for part in ("", "_")):
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

        return TensorFlowTrainer
    training = keras_2_module(optimizer_class, "engine.training")
    return None if training is None else training.Model


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
