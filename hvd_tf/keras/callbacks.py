# SPDX-License-Identifier: Apache-2.0
"""Callbacks for `fit` on several ranks: broadcast, metrics, learning rates, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from hvd_tf._internal.compat.keras import broadcast_variables_of, run_in_session
from hvd_tf._internal.facts import check_same, check_same_sets, exchange
from hvd_tf._internal.keras.epochs import Epochs, steps_of
from hvd_tf._internal.keras.variable_order import check_order
from hvd_tf._internal.runtime import rank, size
from hvd_tf._internal.variables import broadcast_variables
from hvd_tf.keras.join_callback import JoinCallback
from hvd_tf.keras.learning_rates import LearningRateScheduleCallback, LearningRateWarmupCallback

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

    Then all variables exist: those of layers that are built late, and the optimizer's slots. States
    of random numbers stay as they are, so that ranks drop out different units.

    It also sees to it that ranks end their epochs together: where they have unequal numbers of
    batches, it raises ValueError, or the rank with more batches gets a tf.errors.UnknownError. With
    JoinCallback they may have.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Optional[Sequence[Any]] = None
    ) -> None:
        """For one training.

        Args:
          root_rank: a rank of the job.
          device: for the broadcasts; "" leaves the choice to TensorFlow.
          local_variables: variables that stay as they are on each rank.
        """
        super().__init__()
        self._supports_tf_logs = True  # it looks at no batch's logs: Keras 2 need not fetch them
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = list(local_variables or ())
        self._batches = 0
        self._epochs = 0
        self._meetings: Optional[Epochs] = None  # none in a loop that does not begin with them

    def register_local_var(self, var: Any) -> None:
        """Leave this variable as it is on each rank."""
        self._local.append(var)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Raise ValueError on all ranks if they have unequal numbers of batches."""
        self._meetings = Epochs(self.model)
        self._meetings.begin(steps_of(self))

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Count its batches."""
        self._batches = 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Wait for the ranks that are in the last batch of this epoch."""
        self._epochs = epoch + 1
        if self._meetings is not None:
            self._meetings.end_epoch(epoch, self._batches)

    def on_train_end(self, logs: Logs = None) -> None:
        """Raise ValueError on all ranks if some go on."""
        if self._meetings is not None:
            self._meetings.end(self._epochs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Broadcast after the first batch.

        Raises ValueError on all ranks if one has the model's trainable variables in another order.
        """
        self._batches = batch + 1
        if self.broadcast_done:
            return
        self.broadcast_done = True
        if size() > 1:
            with tf.device(self.device):
                if tf.executing_eagerly():
                    check_order(self.model, self._local, self.root_rank)
                variables = broadcast_variables_of(self.model, self._local)
                run_in_session(broadcast_variables(variables, self.root_rank))


class MetricAverageCallback(tf.keras.callbacks.Callback):
    """Averages the epoch's metrics over the ranks, weighted by their numbers of samples.

    Put it before callbacks that look at metrics (ReduceLROnPlateau, EarlyStopping, TensorBoard).
    A metric may have several values, such as one for each class. Each is averaged.

    The average of a metric that is no mean over samples, such as an AUC, is only near to that of
    all samples together.
    """

    def __init__(self, device: str = "") -> None:
        """device: accepted for Horovod's sake. Metrics travel as a few numbers of the host."""
        super().__init__()
        self.device = device
        self._samples: dict[str, float] = {}

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Forget the epoch before."""
        self._samples = {}

    def on_test_begin(self, logs: Logs = None) -> None:
        """Note the number of samples of the training: a validation resets the metrics."""
        self._samples.setdefault("train", _samples(self.model))

    def on_test_end(self, logs: Logs = None) -> None:
        """Note the number of samples of the validation."""
        self._samples["validation"] = _samples(self.model)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replace the metrics in `logs`.

        Raises ValueError on all ranks if they differ in name or shape.
        """
        if logs is None or size() == 1:
            return
        self._samples.setdefault("train", _samples(self.model))
        arrays = {name: _numbers(value) for name, value in logs.items()}
        mine = {name: array.tolist() for name, array in arrays.items() if array is not None}
        facts = {"metrics": mine, "samples": self._samples}
        everyones = exchange(facts, "metric_average")
        check_same_sets(
            [list(theirs["metrics"]) for theirs in everyones],
            0,
            "the metrics",
            "every rank must compile the model with the same ones",
        )
        for theirs in everyones:
            theirs["shapes"] = {name: np.shape(theirs["metrics"][name]) for name in mine}
        remedy = "Every rank must compile the model with the same metrics"
        check_same(everyones, "shapes", "the shape of metrics", remedy)
        for name in mine:
            part = "validation" if name.startswith("val_") else "train"
            weights = [theirs["samples"].get(part, 1.0) for theirs in everyones]
            if not sum(weights) > 0:
                weights = [1.0] * len(everyones)
            values = [np.asarray(theirs["metrics"][name], np.float64) for theirs in everyones]
            average = sum(w * v for w, v in zip(weights, values)) / sum(weights)
            logs[name] = average if np.shape(average) else float(average)


class BestModelCheckpoint(tf.keras.callbacks.ModelCheckpoint):
    """Saves the best model so far, on rank 0 only. Set `filepath` before the training."""

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
        """Save, on rank 0, if it is time."""
        if rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Save, on rank 0, if it is time."""
        if rank() == 0:
            super().on_epoch_end(epoch, logs)


def _samples(model: Any) -> float:
    """The number of samples that the model's metrics have seen since their last reset."""
    for metric in model.metrics:
        if metric.name == "loss" and hasattr(metric, "count"):
            return float(metric.count.numpy())
    return 1.0


def _numbers(value: Any) -> Optional[np.ndarray]:
    """A metric's value, or its values. None: it is no number."""
    try:
        array = np.asarray(value)
        return None if array.dtype.kind in "OUSMmc" else array.astype(np.float64)
    except (TypeError, ValueError):
        return None
