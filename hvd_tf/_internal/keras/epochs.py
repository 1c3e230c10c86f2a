# SPDX-License-Identifier: Apache-2.0
"""Ranks begin and end `fit` and its epochs together. Where they cannot, all learn why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional
from weakref import WeakKeyDictionary

from hvd_tf._internal.facts import Facts, exchange
from hvd_tf._internal.keras.reducing import reducing_of
from hvd_tf._internal.runtime import rank
from hvd_tf._internal.scopes import end_training
from hvd_tf.process_sets import ProcessSet, registered

_REMEDY = (
    "Give every rank equally many batches (hvd_tf.data does, or repeat() with steps_per_epoch=), "
    "the same number of epochs, and callbacks that stop the training on all ranks or on none"
)
_NAME = "fit/meeting"
_BATCHES_BEFORE = "hvd_batches_before"

joined: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""By model: the `JoinedEpochs` of its `fit`, in which ranks may have different numbers of batches.
"""


class Epochs:
    """The meetings of one `fit`, of the ranks that reduce the model's gradients.

    Without a distributed optimizer, with a single rank, or beside `JoinedEpochs` it does nothing.
    """

    def __init__(self, model: Any) -> None:
        """model: compiled."""
        self._process_set = None if model in joined else peers_of(model)

    def begin(self, batches: Optional[int]) -> None:
        """Call it before the first epoch. batches: of an epoch, if it is known.

        Raises ValueError on all ranks if they differ.
        """
        of_all = "" if batches is None else f" with {batches} batches an epoch"
        self._meet(f"begins fit{of_all}", "begin", batches)

    def end_epoch(self, epoch: int, batches: int) -> None:
        """Call it after each epoch (0 is the first) with the number of its batches.

        A rank that has more batches fails in the next one, with a text that has this number.
        """
        self._meet(f"ended epoch {epoch + 1} after {batches} batches", f"epoch {epoch}", batches)

    def end(self, epochs: int) -> None:
        """Call it after the last epoch with the number of epochs."""
        self._meet(f"ended fit after {epochs} epochs", "end", epochs)

    def _meet(self, text: str, where: str, number: Optional[int]) -> None:
        if self._process_set is None:
            return
        # Peers that wait for this rank's gradients have a batch or an epoch more.
        end_training(f"it {text}, while others go on. {_REMEDY}")
        facts = {"text": text, "where": where, "number": number, "rank": rank()}
        everyones = exchange(facts, _NAME, self._process_set)
        end_training("")
        # No rank may go on before all have taken it back.
        exchange({}, f"{_NAME}/taken_back", self._process_set)
        check_together(everyones, _REMEDY)


def steps_of(callback: Any) -> Optional[int]:
    """How many batches an epoch of `fit` has. None: it is not known, or a program's own loop."""
    params = getattr(callback, "params", None) or {}
    return params.get("steps")


def note_batches_before(callback: Any, batches: int) -> None:
    """Tells a `fit`'s other callbacks how many batches of its epoch an earlier `fit` has done."""
    params = getattr(callback, "params", None)
    if params is not None:  # all of them have the same dictionary
        params[_BATCHES_BEFORE] = batches


def batches_before(callback: Any, steps_per_epoch: int) -> int:
    """How many that are, where this `fit` makes the rest of that epoch. Else 0: it repeats it."""
    batches: int = (getattr(callback, "params", None) or {}).get(_BATCHES_BEFORE, 0)
    return batches if batches + (steps_of(callback) or 0) == steps_per_epoch else 0


def peers_of(model: Any) -> Optional[ProcessSet]:
    """The ranks that reduce the model's gradients. None: this rank trains alone."""
    optimizer = reducing_of(model)
    if optimizer is None:
        return None
    members = registered(optimizer.process_set)
    return optimizer.process_set if members.size > 1 and members.rank >= 0 else None


def check_together(everyones: Sequence[Facts], remedy: str) -> None:
    """Raise ValueError on all ranks if they are not at the same place with equal numbers.

    A fact is {"rank", "text": where it is in words, "where", "number": or None}.
    """
    numbers = {theirs["number"] for theirs in everyones} - {None}
    if len({theirs["where"] for theirs in everyones}) > 1 or len(numbers) > 1:
        shown = ", ".join(f"rank {theirs['rank']} {theirs['text']}" for theirs in everyones)
        raise ValueError(f"the ranks do not train together: {shown}. {remedy}")
