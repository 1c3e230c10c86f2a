# SPDX-License-Identifier: Apache-2.0
"""What one rank does for all in `fit`: it writes files and shows the progress.

`fit` of a model with a distributed optimizer is arranged before it begins, on every rank:

- the progress bar is the first rank's, unless the program passes `verbose`;
- where ranks have callbacks that write the same file, the lowest of these ranks keeps its callback;
- where ranks have BackupAndRestore, the lowest of them restores for all;
- JoinCallback is called before all other callbacks, so that all ranks are there when these meet;
- where it trains other variables than the last one, it begins with the first of several passes.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat.keras import (
    broadcast_variables_of,
    build_before_tracing,
    create_optimizer_variables,
    is_built,
    trainable_variables_of,
)
from hvd_tf._internal.compat.keras_fit import (
    backup_position,
    follow_backup,
    forget_backup,
    share_backup,
    trainer_class,
)
from hvd_tf._internal.facts import check_same, exchange
from hvd_tf._internal.keras.epochs import joined
from hvd_tf._internal.keras.progress import end_lines
from hvd_tf._internal.keras.reducing import Reducing, reducing_of
from hvd_tf._internal.variables import broadcast_variables
from hvd_tf.process_sets import ProcessSet, registered

# What callbacks of Keras write, by their classes and the attributes with the paths.
_FILES = {"ModelCheckpoint": "filepath", "TensorBoard": "log_dir", "CSVLogger": "filename"}
_BACKUP = "BackupAndRestore"
_JOIN = "JoinCallback"


@functools.cache
def patch_fit(optimizer_class: Any) -> None:
    """Arrange the `fit` of the Keras that this class is of. Does nothing the second time."""
    trainer = trainer_class(optimizer_class)
    if trainer is not None and not hasattr(trainer.fit, "_hvd_original"):
        trainer.fit = _arranged(trainer.fit)


def _arranged(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = reducing_of(self)
        if optimizer is None:
            return original(self, *args, **kwargs)
        optimizer._hvd_begin_fit(trainable_variables_of(self))
        try:
            return arranged(self, optimizer, *args, **kwargs)
        finally:
            optimizer._hvd_end_fit(trainable_variables_of(self))

    def arranged(self: Any, optimizer: Reducing, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        joined.pop(self, None)  # of an earlier fit
        if _has_peers(optimizer.process_set):
            _arrange(self, bound.arguments, optimizer.process_set)
        end_lines(bound.arguments)
        try:
            return original(*bound.args, **bound.kwargs)
        except Exception as error:
            if self in joined:
                joined[self].fail(error)
            raise

    fit._hvd_original = original  # type: ignore[attr-defined]
    return fit


def _has_peers(process_set: ProcessSet) -> bool:
    members = registered(process_set)
    return members.size > 1 and members.rank >= 0


def _arrange(model: Any, arguments: dict[str, Any], process_set: ProcessSet) -> None:
    """Change the arguments of a `fit`. A collective call of the set's ranks."""
    me = registered(process_set).rank
    if arguments.get("verbose", "auto") == "auto" and me != 0:
        arguments["verbose"] = 0
    callbacks = arguments.get("callbacks")
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        if not isinstance(callbacks, tf.keras.callbacks.Callback):
            callbacks = None  # a CallbackList of the program's own stays as it is
        else:
            callbacks = [callbacks]
    mine = [_file_of(callback) for callback in callbacks or ()]
    backs_up = any(_is_a(callback, _BACKUP) for callback in callbacks or ())
    joins = any(_is_a(callback, _JOIN) for callback in callbacks or ())
    facts = {"files": mine, "backs_up": backs_up, "joins": joins, "built": is_built(model)}
    everyones = exchange(facts, "fit/files", process_set)
    if all(theirs["built"] for theirs in everyones):
        build_before_tracing(model)
    check_same(everyones, "joins", "fit: whether there is a JoinCallback", "Pass it on every rank")
    kept = [
        callback
        for callback, file in zip(callbacks or (), mine)
        if not file or not any(file in theirs["files"] for theirs in everyones[:me])
    ]
    kept.sort(key=lambda callback: not _is_a(callback, _JOIN))
    owner = next((i for i, theirs in enumerate(everyones) if theirs["backs_up"]), None)
    if owner is not None and (callbacks is not None or arguments.get("callbacks") is None):
        if me != owner:
            kept = [callback for callback in kept if not _is_a(callback, _BACKUP)]
        # The callback of tf_keras makes them on the owner only, by other names than the first step.
        if model.built:
            create_optimizer_variables(model.optimizer, model.trainable_variables)
        # At the end of every rank's list, so that ranks meet there in the same order.
        kept.append(_SharedBackup(owner, process_set))
    if callbacks is not None or kept:
        arguments["callbacks"] = kept


def _is_a(callback: Any, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(callback).__mro__)


def _file_of(callback: Any) -> str:
    """The kind and path of what it writes; "" if nothing is known of it, or it has no path yet."""
    for name, attribute in _FILES.items():
        if _is_a(callback, name) and getattr(callback, attribute, None):
            return f"{name} {getattr(callback, attribute)}"
    return ""


class _SharedBackup(tf.keras.callbacks.Callback):
    """Gives all ranks what the owner's BackupAndRestore has restored: variables and the epoch."""

    def __init__(self, owner: int, process_set: ProcessSet) -> None:
        """owner: its place among the set's ranks."""
        super().__init__()
        self._owner = owner
        self._process_set = process_set
        self._is_owner = registered(process_set).rank == owner

    def on_train_begin(self, logs: Optional[dict[str, Any]] = None) -> None:
        """Take the owner's variables, if it restored any, and its epoch."""
        position = backup_position(self.model) if self._is_owner else None
        position = self._of_owner(position)
        if position is not None:
            create_optimizer_variables(self.model.optimizer, self.model.trainable_variables)
            root = registered(self._process_set).ranks[self._owner]
            shared = broadcast_variables_of(self.model, ())
            broadcast_variables(shared, root, process_set=self._process_set)
        if self._is_owner:
            share_backup(self.model, self._of_owner)
        else:
            follow_backup(self.model, position, self._of_owner)

    def on_train_end(self, logs: Optional[dict[str, Any]] = None) -> None:
        """Leave nothing behind for the next `fit`. Keras itself does."""
        forget_backup(self.model)

    def _of_owner(self, value: Any) -> Any:
        everyones = exchange({"value": value}, "fit/backup", self._process_set)
        return everyones[self._owner]["value"]
