# SPDX-License-Identifier: Apache-2.0
"""`MetricAverageCallback`: an epoch's metrics of all ranks."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf._internal.compat import tf_variable
from hvd_tf._internal.facts import Facts, check_same, check_same_sets, exchange
from hvd_tf._internal.keras.epochs import steps_of
from hvd_tf._internal.runtime import size

Logs = Optional[dict[str, Any]]


class MetricAverageCallback(tf.keras.callbacks.Callback):
    """Averages the epoch's metrics over the ranks, weighted by their numbers of samples.

    In a graph of TF 1, where Keras does not count them, each rank has the same weight.

    Put it before callbacks that look at metrics (ReduceLROnPlateau, EarlyStopping, TensorBoard).
    A metric may have several values, such as one for each class. Each is averaged.

    The average of a metric that is no mean over samples, such as an AUC, is only near to that of
    all samples together.
    """

    def __init__(self, device: str = "") -> None:
        """device: accepted for Horovod's sake. Metrics travel as a few numbers of the host."""
        super().__init__()
        self._supports_tf_logs = True  # it looks at no batch's logs: Keras 2 need not fetch them
        self.device = device
        self._samples: dict[str, float] = {}
        self._batches = 0
        self._count: Any = None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Forgets the epoch before."""
        self._samples, self._batches, self._count = {}, 0, None

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Notes the number of samples in what may be the last batch.

        At the end of the epoch another callback may have reset it, by model.evaluate.
        """
        self._batches = batch + 1
        if self._batches >= (steps_of(self) or 0) and tf.executing_eagerly():
            self._count = _count_of(self.model)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Notes the number of samples of the training: a validation resets the metrics."""
        self._note_training()

    def on_test_end(self, logs: Logs = None) -> None:
        """Notes the number of samples of the validation."""
        self._samples["validation"] = _samples(self.model)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replaces the metrics in `logs`. A rank that had no batch gets those of the others.

        Raises ValueError on all ranks if they differ in name or shape.
        """
        if logs is None or size() == 1:
            return
        self._note_training()
        arrays = {name: _numbers(value) for name, value in logs.items()}
        mine = {name: array.tolist() for name, array in arrays.items() if array is not None}
        facts = {"metrics": mine, "samples": self._samples, "batches": self._batches}
        everyones = exchange(facts, "metric_average")
        for name, (values, weights) in _by_metric(everyones).items():
            if not sum(weights) > 0:
                weights = [1.0] * len(values)
            average = sum(w * v for w, v in zip(weights, values)) / sum(weights)
            logs[name] = average if np.shape(average) else float(average)

    def _note_training(self) -> None:
        if "train" not in self._samples:
            known = self._count is not None
            self._samples["train"] = float(self._count) if known else _samples(self.model)


def _by_metric(everyones: list[Facts]) -> dict[str, tuple[list[np.ndarray], list[float]]]:
    """By name: the values on the ranks that have the metric, and their numbers of samples.

    Only a rank without a batch may have fewer metrics than others. Raises ValueError on all ranks
    if they differ otherwise.
    """
    first = next((i for i, theirs in enumerate(everyones) if theirs["batches"]), None)
    has_fewer = [first is not None and not theirs["batches"] for theirs in everyones]
    first = first or 0
    of_first = everyones[first]["metrics"]
    names = list(of_first)
    check_same_sets(
        [names if fewer else theirs["metrics"] for fewer, theirs in zip(has_fewer, everyones)],
        first,
        "the metrics",
        "every rank must compile the model with the same ones",
    )
    for fewer, theirs in zip(has_fewer, everyones):
        given = {**(of_first if fewer else {}), **theirs["metrics"]}
        theirs["shapes"] = {name: np.shape(given[name]) for name in names}
    remedy = "Every rank must compile the model with the same metrics"
    check_same(everyones, "shapes", "the shape of metrics", remedy)
    found = {}
    for name in names:
        part = "validation" if name.startswith("val_") else "train"
        having = [theirs for theirs in everyones if name in theirs["metrics"]]
        values = [np.asarray(theirs["metrics"][name], np.float64) for theirs in having]
        found[name] = values, [theirs["samples"].get(part, 1.0) for theirs in having]
    return found


def _samples(model: Any) -> float:
    """The number of samples that the model's metrics have seen since their last reset."""
    count = _count_of(model)
    return 1.0 if count is None else float(count)


def _count_of(model: Any) -> Any:
    """The same, as a tensor of its own. None: no metric counts them."""
    for metric in model.metrics:
        if metric.name == "loss" and hasattr(metric, "count"):
            return tf.identity(tf_variable(metric.count))
    return None


def _numbers(value: Any) -> Optional[np.ndarray]:
    """A metric's value, or its values. None: it is no number."""
    try:
        array = np.asarray(value)
        return None if array.dtype.kind in "OUSMmc" else array.astype(np.float64)
    except (TypeError, ValueError):
        return None
