# SPDX-License-Identifier: Apache-2.0
"""Epochs of `fit` in which ranks with fewer batches wait for the others."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.causes import Cause, Kind, caused
from hvd_tf._internal.compat import Variable
from hvd_tf._internal.compat.keras import broadcast_variables_of, create_optimizer_variables
from hvd_tf._internal.compat.keras_fit import had_no_batch
from hvd_tf._internal.facts import Facts, exchange
from hvd_tf._internal.keras.epochs import check_together, joined, peers_of
from hvd_tf._internal.keras.reducing import reducing_of
from hvd_tf._internal.last_rank import wait_for_last
from hvd_tf._internal.runtime import rank, size
from hvd_tf._internal.variables import broadcast_variables
from hvd_tf.process_sets import registered

_NAME = "fit/joined"
_REMEDY = (
    "JoinCallback lets ranks have different numbers of batches, but all have the same number of "
    "epochs, and in Keras 2 each rank needs a batch in every epoch. Callbacks must stop the "
    "training on all ranks or on none"
)


class JoinedEpochs:
    """The meetings of one `fit`, of the ranks that reduce the model's gradients.

    All ranks meet at the beginning and end of `fit` and of each epoch. A rank that has failed
    joins, so that it keeps nobody waiting. The next meeting of the others tells them.
    """

    def __init__(self, model: Any, local: Sequence[Variable]) -> None:
        """model: compiled. local: variables that stay as they are on each rank."""
        self._model_ref = weakref.ref(model)  # `joined` has it as long as the model lives
        self._local = local
        self._process_set = peers_of(model)
        self._epoch = 0
        self._is_open = False  # whether this rank is in an epoch
        self._is_over = False  # whether the meetings have ended, well or not
        if self._process_set is not None:
            joined[model] = self

    @property
    def _model(self) -> Any:
        return self._model_ref()

    def begin(self) -> None:
        """Call it before the first epoch.

        Raises ValueError if the model has no distributed optimizer.
        """
        optimizer = reducing_of(self._model)
        if optimizer is None and size() > 1:
            raise ValueError(
                "JoinCallback needs a model with a distributed optimizer: wrap it in "
                "hvd_tf.keras.DistributedOptimizer before compile()"
            )
        if self._process_set is None:
            return
        self._meet("begins fit", "begin")

    def begin_epoch(self, epoch: int) -> None:
        """Call it before each epoch. 0 is the first."""
        self._epoch, self._is_open = epoch, True
        self._meet(f"begins epoch {epoch + 1}", f"begin {epoch}")

    def end_epoch(self) -> None:
        """Call it after the last batch of an epoch: a second call does nothing.

        Waits for the ranks that have more batches. Then all have the variables of the last one.
        """
        if self._process_set is None or not self._is_open:
            return
        self._is_open = False
        last = wait_for_last(self._process_set)
        everyones = self._tell_of_variables()
        numbers = {theirs["number"] for theirs in everyones}
        if len(numbers) > 1 and all(theirs["where"] == "end" for theirs in everyones):
            if self._model.built:  # a rank without a batch so far has no slots yet
                create_optimizer_variables(self._model.optimizer, self._model.trainable_variables)
            everyones = self._tell_of_variables()
        self._check(everyones)
        broadcast_variables(self._variables(), last, process_set=self._process_set)

    def _tell_of_variables(self) -> list[Facts]:
        return self._tell(f"ended epoch {self._epoch + 1}", "end", len(self._variables()))

    def end(self) -> None:
        """Call it after the last epoch."""
        self._meet(f"ended fit after {self._epoch + 1} epochs", "end of fit")
        self._is_over = True

    def fail(self, error: Exception) -> Exception:
        """Call it when `fit` raises. The other ranks then raise at their next meeting.

        Returns what this rank is to raise: the error, or one that says more.
        """
        if self._process_set is None or self._is_over:
            return error
        if had_no_batch(error):
            error = ValueError(
                f"JoinCallback: rank {rank()} had no batch in epoch {self._epoch + 1}, and Keras 2 "
                "needs one on every rank: share the data out so that each rank has some, or start "
                "fewer ranks"
            )
        self._is_over = True
        try:
            wait_for_last(self._process_set)
            self._tell("failed", "failed", failure=f"{type(error).__name__}: {error}")
        except (tf.errors.OpError, RuntimeError, ValueError):
            pass  # peers are lost: this rank raises its own error
        return error

    def _meet(self, text: str, where: str) -> None:
        if self._process_set is None:
            return
        everyones = self._tell(text, where)
        if len(everyones) < registered(self._process_set).size:
            # Some have failed and joined. They tell why once all have.
            wait_for_last(self._process_set)
            everyones = self._tell(text, where)
        self._check(everyones)

    def _tell(
        self, text: str, where: str, number: Optional[int] = None, failure: str = ""
    ) -> list[Facts]:
        assert self._process_set is not None
        facts = {"rank": rank(), "text": text, "where": where, "number": number, "failure": failure}
        return exchange(facts, _NAME, self._process_set)

    def _check(self, everyones: list[Facts]) -> None:
        """Raise the same error on all ranks that have not failed themselves."""
        try:
            for theirs in everyones:
                if theirs["failure"]:
                    failed = theirs["rank"]
                    error = RuntimeError(f"fit failed on rank {failed}: {theirs['failure']}")
                    raise caused(error, Cause(Kind.CALL_FAILED, failed, "fit"))
            numbers = [theirs["number"] for theirs in everyones]
            if len(set(numbers)) > 1:
                raise ValueError(
                    f"JoinCallback: the ranks have {numbers} variables. A rank without a batch "
                    "has not built them: build the model before fit, or give every rank a batch"
                )
            check_together(everyones, _REMEDY)
        except Exception:
            self._is_over = True
            raise

    def _variables(self) -> list[Variable]:
        optimizer = reducing_of(self._model)
        assert optimizer is not None
        local = [*self._local, *optimizer._local_vars]
        return [*broadcast_variables_of(self._model, local), *optimizer.pass_state]
