# SPDX-License-Identifier: Apache-2.0
"""What one rank does for all in `fit`: it writes files and shows the progress.

`fit` of a model with a distributed optimizer, or several, is arranged before it begins, on every
rank:

- the progress bar is the first rank's, unless the program passes `verbose`;
- where ranks have callbacks that write the same file, the lowest of these ranks keeps its callback,
  and of a class of the program's own the others keep what that class adds;
- where ranks have BackupAndRestore, the lowest of them restores for all;
- where Keras tunes the number of steps in an execution, all take what the first rank finds;
- JoinCallback is called before all other callbacks, so that all ranks are there when these meet;
- where it trains other variables than the last one, it begins with the first of several passes;
- optimizers know that they are in a `fit`, and warn where nothing in its step reduces.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import ExitStack
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat.adapted_layers import refresh_adapted
from hvd_tf._internal.compat.keras import (
    broadcast_variables_of,
    create_optimizer_variables,
    trainable_variables_of,
)
from hvd_tf._internal.compat.keras_fit import (
    backup_position,
    follow_backup,
    forget_backup,
    share_backup,
    trainer_class,
)
from hvd_tf._internal.facts import Facts, check_same, exchange
from hvd_tf._internal.keras.any_keras import AnyKerasCallback
from hvd_tf._internal.keras.epochs import joined
from hvd_tf._internal.keras.execution_steps import shared_steps, steps_fact
from hvd_tf._internal.keras.joined_epochs import JoinedEpochs
from hvd_tf._internal.keras.progress import end_lines
from hvd_tf._internal.keras.reducing import Reducing, all_reducing_of
from hvd_tf._internal.keras.silenced import class_of_keras, is_plain, silence
from hvd_tf._internal.keras.unreduced import expect_no_more, expect_reduction
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
        optimizers = all_reducing_of(self)
        if not optimizers:
            return original(self, *args, **kwargs)
        for optimizer in optimizers:
            optimizer._hvd_begin_fit(trainable_variables_of(self))
        try:
            return arranged(self, optimizers, *args, **kwargs)
        finally:
            for optimizer in optimizers:
                optimizer._hvd_end_fit(trainable_variables_of(self))

    def arranged(self: Any, optimizers: list[Reducing], *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        joined.pop(self, None)  # of an earlier fit
        with ExitStack() as undone:
            process_set = optimizers[0].process_set
            if _has_peers(process_set):
                _arrange(self, bound.arguments, process_set, undone)
                for optimizer in optimizers:
                    expect_reduction(optimizer)
                    undone.callback(expect_no_more, optimizer)
            end_lines(bound.arguments)
            try:
                return original(*bound.args, **bound.kwargs)
            except Exception as error:
                if self not in joined and _has_join(bound.arguments):
                    JoinedEpochs(self, ())  # it failed before the callbacks were called
                told = joined[self].fail(error) if self in joined else error
                if told is error:
                    raise
                raise told from error

    fit._hvd_original = original  # type: ignore[attr-defined]
    return fit


def _has_peers(process_set: ProcessSet) -> bool:
    members = registered(process_set)
    return members.size > 1 and members.rank >= 0


def _arrange(
    model: Any, arguments: dict[str, Any], process_set: ProcessSet, undone: ExitStack
) -> None:
    """Change the arguments of a `fit`. A collective call of the set's ranks.

    undone: gets what is to be called after the `fit`.
    """
    me = registered(process_set).rank
    if arguments.get("verbose", "auto") == "auto" and me != 0:
        arguments["verbose"] = 0
    callbacks, is_list = arguments.get("callbacks"), True
    if callbacks is not None and not isinstance(callbacks, (list, tuple)):
        is_list = isinstance(callbacks, tf.keras.callbacks.Callback)
        callbacks = [callbacks] if is_list else None  # a CallbackList stays as it is
    given = tf.nest.flatten(callbacks or ())  # Keras takes lists within lists
    facts = {
        "files": [_file_of(callback) for callback in given],
        "backs_up": any(class_of_keras(callback, _BACKUP) for callback in given),
        "joins": any(_is_join(callback) for callback in given),
        "is_list": is_list,
        "steps": steps_fact(model),
    }
    everyones = exchange(facts, "fit/files", process_set)
    check_same(everyones, "joins", "fit: whether there is a JoinCallback", "Pass it on every rank")
    kept = _without_others_files(given, everyones, me, undone)
    kept.sort(key=lambda callback: not _is_join(callback))
    owner = next((i for i, theirs in enumerate(everyones) if theirs["backs_up"]), None)
    if owner is not None and all(theirs["is_list"] for theirs in everyones):
        if me != owner:
            kept = _without(kept, {_BACKUP}, undone)
        # Before anything is restored: the callback of Keras 3 leaves out what is not there, and
        # that of tf_keras makes it on the owner only, by other names than the first step.
        if model.built:
            create_optimizer_variables(model.optimizer, model.trainable_variables)
        # At the end of every rank's list, so that ranks meet there in the same order.
        kept.append(_SharedBackup(owner, process_set))
    kept += shared_steps(model, everyones, process_set, undone)
    if callbacks is not None or kept:
        arguments["callbacks"] = kept


def _without_others_files(
    callbacks: list[Any], everyones: list[Facts], me: int, undone: ExitStack
) -> list[Any]:
    """The callbacks, but for what a lower rank writes."""
    of_lower = {file for theirs in everyones[:me] for file in theirs["files"] if file}
    kept = []
    for callback in callbacks:
        is_others = _file_of(callback) in of_lower
        kept += _without([callback], set(_FILES), undone) if is_others else [callback]
    return kept


def _without(callbacks: list[Any], names: set[str], undone: ExitStack) -> list[Any]:
    """The callbacks, but for what they have of classes of Keras with these names."""
    kept = []
    for callback in callbacks:
        classes = [cls for name in names if (cls := class_of_keras(callback, name))]
        if classes and is_plain(callback):
            continue
        for cls in classes:
            undone.callback(silence(callback, cls))
        kept.append(callback)
    return kept


def _has_join(arguments: dict[str, Any]) -> bool:
    return any(map(_is_join, tf.nest.flatten(arguments.get("callbacks") or ())))


def _is_join(callback: Any) -> bool:
    return any(cls.__name__ == _JOIN for cls in type(callback).__mro__)


def _file_of(callback: Any) -> str:
    """The kind and path of what it writes; "" if nothing is known of it, or it has no path yet."""
    for name, attribute in _FILES.items():
        if class_of_keras(callback, name) and getattr(callback, attribute, None):
            return f"{name} {getattr(callback, attribute)}"
    return ""


class _SharedBackup(AnyKerasCallback):
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
            refresh_adapted(self.model)
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
