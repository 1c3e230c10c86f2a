# SPDX-License-Identifier: Apache-2.0
"""All callbacks for `fit`; those for the broadcast and for checkpoints are here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf._internal.compat import variable_key, variables_given
from hvd_tf._internal.compat.adapted_layers import refresh_adapted
from hvd_tf._internal.compat.keras import (
    broadcast_variables_of,
    create_optimizer_variables,
    run_in_session,
)
from hvd_tf._internal.facts import exchange
from hvd_tf._internal.keras.epochs import Epochs, joined, peers_of, steps_of
from hvd_tf._internal.keras.reducing import reducing_of
from hvd_tf._internal.keras.variable_order import check_order
from hvd_tf._internal.runtime import rank, size
from hvd_tf._internal.variables import broadcast_variables
from hvd_tf.keras.join_callback import JoinCallback
from hvd_tf.keras.learning_rates import LearningRateScheduleCallback, LearningRateWarmupCallback
from hvd_tf.keras.metric_average import MetricAverageCallback
from hvd_tf.process_sets import registered

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "JoinCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

Logs = Optional[dict[str, Any]]


class BroadcastGlobalVariablesCallback(tf.keras.callbacks.Callback):
    """Gives every rank the root's model and optimizer, after the first batch.

    Then all variables exist: those of layers that are built late, and the optimizer's slots. Before
    that batch it gives them the root's weights, where all ranks of the job train the model together
    and have built it. So the first gradients are those of the root's weights. With JoinCallback
    the optimizer is given then too, because a rank may have no batch. States of random numbers stay
    as they are, so that ranks drop out different units.

    It also sees to it that ranks end their epochs together: where they have unequal numbers of
    batches, it raises ValueError, or the rank with more batches gets a tf.errors.UnknownError. With
    JoinCallback they may have.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Union[None, Any, Sequence[Any]] = None,
    ) -> None:
        """For one training.

        Args:
          root_rank: a rank of the job.
          device: for the broadcasts; "" leaves the choice to TensorFlow.
          local_variables: a variable, or several, that stay as they are on each rank.
        """
        super().__init__()
        self._supports_tf_logs = True  # it looks at no batch's logs: Keras 2 need not fetch them
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = variables_given(local_variables)
        self._batches = 0
        self._epochs = 0
        self._meetings: Optional[Epochs] = None  # none in a loop that does not begin with them

    def register_local_var(self, var: Any) -> None:
        """Leaves this variable as it is on each rank."""
        self._local.append(var)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Raises ValueError on all ranks if they have unequal numbers of batches."""
        self._meetings = Epochs(self.model)
        self._meetings.begin(steps_of(self))
        self._begin_together()

    def _begin_together(self) -> None:
        """Has all ranks broadcast in this fit, or none.

        In an earlier fit they may have come to different points: one has failed before its first
        batch, or had none.
        """
        peers = peers_of(self.model)
        if peers is None:
            return
        weights = self._weights() if self.model.built else []
        shapes = [f"{variable.dtype} {variable.shape}" for variable in weights]
        digest = hashlib.sha256("\n".join(shapes).encode()).hexdigest()
        facts = {"done": self.broadcast_done, "built": self.model.built, "shapes": digest}
        everyones = exchange(facts, "fit/broadcast", peers)
        self.broadcast_done = all(theirs["done"] for theirs in everyones)
        if self.broadcast_done or not tf.executing_eagerly():
            return
        if not all(theirs["built"] for theirs in everyones):
            return
        if self.model in joined:
            # Some may have no batch in the first epoch. Here all of them are.
            create_optimizer_variables(self.model.optimizer, self.model.trainable_variables)
            self._broadcast()
        elif peers.size() == size() and len({theirs["shapes"] for theirs in everyones}) == 1:
            # Layers that are built late, and slots, follow after the first batch.
            self._share(weights)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Counts its batches."""
        self._batches = 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Waits for the ranks that are in the last batch of this epoch."""
        self._epochs = epoch + 1
        if self._meetings is not None:
            self._meetings.end_epoch(epoch, self._batches)
        if self.model in joined:
            self.broadcast_done = True  # all have the variables of the last rank

    def on_train_end(self, logs: Logs = None) -> None:
        """Raises ValueError on all ranks if some go on."""
        if self._meetings is not None:
            self._meetings.end(self._epochs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Broadcasts after the first batch.

        Raises ValueError on all ranks if one has the model's trainable variables in another order.
        """
        self._batches = batch + 1
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        if size() > 1 and tf.executing_eagerly():
            check_order(self.model, self._local, self.root_rank)
        self._share(broadcast_variables_of(self.model, self._local))
        self.broadcast_done = True

    def _weights(self) -> list[Any]:
        """What is broadcast but for the optimizer's."""
        of_model = {variable_key(v) for v in self.model.variables if hasattr(v, "dtype")}
        every = broadcast_variables_of(self.model, self._local)
        return [variable for variable in every if variable_key(variable) in of_model]

    def _share(self, variables: Sequence[Any]) -> None:
        if size() > 1:
            with tf.device(self.device):
                run_in_session(broadcast_variables(variables, self.root_rank))
            refresh_adapted(self.model)


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):
    """Saves the best model so far. Set `filepath` before the training.

    Rank 0 saves it, or the lowest rank of the process set that trains the model.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Union[str, os.PathLike[str], None] = None,
    ) -> None:
        """Args are those of Keras' ModelCheckpoint. `filepath` may be set as an attribute later."""
        some = "model.weights.h5" if save_weights_only else "model.keras"
        super().__init__(
            os.fspath(filepath) if filepath else some,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        self.filepath = filepath

    def on_train_begin(self, logs: Logs = None) -> None:
        """Raises ValueError if there is no path."""
        if not self.filepath:
            raise ValueError("BestModelCheckpoint has no path: set its `filepath` before fit")
        self.filepath = os.fspath(self.filepath)  # Keras formats it
        super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Saves, on one rank, if it is time."""
        if self._saves():
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Saves, on one rank, if it is time."""
        if self._saves():
            super().on_epoch_end(epoch, logs)

    def _saves(self) -> bool:
        optimizer = reducing_of(self.model)
        return (rank() if optimizer is None else registered(optimizer.process_set).rank) == 0
