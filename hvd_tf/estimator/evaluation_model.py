# SPDX-License-Identifier: Apache-2.0
"""`EvaluationModel`: the graph of an Estimator's evaluation on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import compat
from hvd_tf._internal.compat import v1
from hvd_tf._internal.root_variables import RootVariables
from hvd_tf._internal.runtime import rank
from hvd_tf.estimator import evaluation_input, metric_state
from hvd_tf.estimator.collectives import WAITS, collective_among
from hvd_tf.estimator.metric_sums import MetricSums

LOSS = "loss"


class EvaluationModel:
    """An Estimator's evaluation in a graph of its own: input, model, metrics."""

    def __init__(
        self,
        estimator: Any,
        input_fn: Callable[..., Any],
        steps: Optional[int],
        seed: int,
        checkpoint: Optional[str],
        share: Optional[tuple[int, int]],
    ) -> None:
        """Builds the input. The arguments are the same on every rank, but for these.

        checkpoint: what rank 0 restores. None on the other ranks. share: (n, i) for the i-th of n
        shares of the batches. None: all batches.
        """
        self.estimator = estimator
        self.checkpoint = checkpoint
        self.share = share
        self._steps = steps
        with tf.Graph().as_default() as self.graph:
            # One seed for all ranks, so that a dataset without a seed of its own shuffles in the
            # same way on all.
            v1.set_random_seed(seed)
            self._step = v1.train.create_global_step()
            self.source = evaluation_input.read(input_fn, estimator.params, estimator.config)

    def build(self) -> None:
        """Builds the rest, once it is known whether the input is a share."""
        estimator, source, share = self.estimator, self.source, self.share
        with self.graph.as_default():
            source.settle()
            self.obstacle = source.obstacle if share else ""
            batch = source.tensors(None if self.obstacle else share, self._steps)
            spec = estimator.model_fn(
                batch.features, batch.labels, evaluation_input.EVAL, estimator.config
            )
            metrics = _metrics(spec, batch)
            if share:
                _refuse_collectives(metrics)
            self.weights = self._weights()
            self.hooks = list(spec.evaluation_hooks or ())
            self.update_op = tf.group(*[update for _, update in metrics.values()])
            self.values = {name: value for name, (value, _) in metrics.items()}
            self.values[v1.GraphKeys.GLOBAL_STEP] = self._step
            self.states: list[tf.Variable] = []
            self.initializer = batch.initializer
            if share and not self.obstacle:
                self._share(metrics)
            self.scaffold = _scaffold(spec.scaffold)

    def _weights(self) -> str:
        """Arranges what the session begins with, after model_fn. Returns that in words."""
        if self.checkpoint:
            return f"checkpoint {self.checkpoint}"
        start = compat.warm_start_of(self.estimator)
        # Other ranks may not reach the checkpoint. They get rank 0's values by broadcast.
        if start and rank() == 0:
            v1.train.warm_start(*start)
            return f"weights of a warm start from {start.ckpt_to_initialize_from}"
        return "newly initialised weights"

    def _share(self, metrics: Mapping[str, metric_state.MetricOps]) -> None:
        self.states, reasons = metric_state.states_of(metrics)
        self.obstacle = "; ".join(
            f"its metric {name!r} cannot be summed over ranks: {why}"
            for name, why in reasons.items()
        )
        if not reasons:
            self.variables = RootVariables(0)
            self.sums = MetricSums(self.states)


def _metrics(spec: Any, batch: evaluation_input.Tensors) -> dict[str, metric_state.MetricOps]:
    """The model's metrics by name, and the mean of its loss over examples."""
    metrics = {name: _pair(given) for name, given in (spec.eval_metric_ops or {}).items()}
    if LOSS in metrics:
        raise ValueError(
            f"eval_metric_ops has a metric {LOSS!r}, which is the name of the model's own loss; "
            "give it another name"
        )
    metrics[LOSS] = v1.metrics.mean(spec.loss, weights=batch.examples())
    return metrics


def _refuse_collectives(metrics: Mapping[str, metric_state.MetricOps]) -> None:
    """Raises ValueError if a rank's steps would wait for other ranks, which may have none left."""
    if found := collective_among(metric_state.operations_of(list(metrics.values()))):
        raise ValueError(
            f"evaluate: the loss or the metrics of the model need a collective, {found}. "
            f"{WAITS}: build no collectives in mode EVAL"
        )


def _scaffold(given: Optional[v1.train.Scaffold]) -> v1.train.Scaffold:
    """The model's Scaffold, which may not know of the metrics' variables. Call it after them."""
    if given is None or given.local_init_op is None:
        return given or v1.train.Scaffold()
    return v1.train.Scaffold(
        local_init_op=tf.group(given.local_init_op, v1.train.Scaffold.default_local_init_op()),
        copy_from_scaffold=given,
    )


def _pair(metric: Any) -> metric_state.MetricOps:
    """The value and the update of a metric of tf.compat.v1.metrics or Keras."""
    return metric if isinstance(metric, tuple) else (metric.result(), metric.updates)
