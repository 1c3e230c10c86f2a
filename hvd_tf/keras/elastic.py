# SPDX-License-Identifier: Apache-2.0
"""Elastic training by `fit`: a model's state, and the callbacks that keep it up to date."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.keras.epochs import note_batches_before
from hvd_tf.elastic import State, TensorFlowKerasState, run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

Logs = Optional[dict[str, Any]]


class KerasState(TensorFlowKerasState):
    """A model of Keras and its optimizer, beside Python objects such as `epoch` and `batch`."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Args as for `TensorFlowKerasState`."""
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(tf.keras.callbacks.Callback):
    """Commits after every few batches and after each epoch.

    Put the callbacks that update the state before it.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """batches_per_commit: at least 1. A commit copies the model to the host's memory."""
        super().__init__()
        self._supports_tf_logs = True  # it looks at no batch's logs: Keras 2 need not fetch them
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit={batches_per_commit}: pass 1 or more")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Begins to count."""
        self._left = self.batches_per_commit

    # Not on_train_batch_end, so that a derived class may have its own of both.
    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commits, if it is time."""
        self._left -= 1
        if self._left <= 0:
            self.commit()
            self._left = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commits."""
        self.commit()

    def commit(self) -> None:
        """Commits the state. A derived class may do more."""
        self.state.commit()


class UpdateBatchStateCallback(tf.keras.callbacks.Callback):
    """Keeps `state.batch`: how many batches of this epoch are done. 0 between epochs.

    Those of an earlier call of `fit` count too, where this one goes on in the middle of an epoch.
    """

    def __init__(self, state: Any) -> None:
        """state: has the attribute `batch`."""
        super().__init__()
        self._supports_tf_logs = True  # it looks at no batch's logs: Keras 2 need not fetch them
        self.state = state
        self._done_before = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """Notes the batches before, and tells callbacks of the learning rate."""
        self._done_before = self.state.batch
        note_batches_before(self, self._done_before)

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Counts this batch."""
        self.state.batch = self._done_before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Begins anew."""
        self.state.batch = self._done_before = 0
        note_batches_before(self, 0)


class UpdateEpochStateCallback(tf.keras.callbacks.Callback):
    """Keeps `state.epoch`: how many epochs are done, those of earlier calls of `fit` included.

    Pass to `fit` either initial_epoch=state.epoch, or epochs=all - state.epoch.
    """

    def __init__(self, state: Any) -> None:
        """state: has the attribute `epoch`."""
        super().__init__()
        self.state = state
        self._first: Optional[int] = None
        self._done_before: int = state.epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Notes the epochs before."""
        self._first = None
        self._done_before = self.state.epoch

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Notes what `fit` calls its first epoch."""
        if self._first is None:
            self._first = epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Counts this epoch."""
        first = self._first or 0  # a loop of the program's own may not tell of begins
        self.state.epoch = self._done_before + epoch - first + 1
