# SPDX-License-Identifier: Apache-2.0
"""`train_and_evaluate`: training with evaluations in between, on all ranks. Rank 0 decides when."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Optional

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal import compat
from hvd_tf._internal.compat import v1
from hvd_tf._internal.compat.estimator import tf_estimator
from hvd_tf._internal.facts import ERROR
from hvd_tf._internal.hooks import BroadcastGlobalVariablesHook, announce_hook
from hvd_tf._internal.meeting import on_rank_0
from hvd_tf._internal.runtime import Sum, global_process_set, rank
from hvd_tf._internal.step_data import data_of_step
from hvd_tf.estimator.end_together import EndTogetherHook
from hvd_tf.estimator.evaluation import evaluate
from hvd_tf.estimator.hooks import LearningRateHook, MetricAverageHook
from hvd_tf.estimator.saving import EVALUATE, SAVE, Saver, Schedule
from hvd_tf.estimator.training import is_trained, meet, train_to

_WHAT = "train_and_evaluate"
# hvd_tf's own hooks. No rank may lack one that another rank has.
_OF_ALL_RANKS = (BroadcastGlobalVariablesHook, EndTogetherHook, LearningRateHook, MetricAverageHook)


def train_and_evaluate(
    estimator: Any, train_spec: Any, eval_spec: Any
) -> tuple[Optional[dict[str, Any]], list[Any]]:
    """Trains, evaluates and exports as `tf.estimator.train_and_evaluate` does in one process.

    Call it on every rank with the same arguments. Rank 0 saves checkpoints, by the steps or seconds
    of its RunConfig. It decides what is done after which step, because seconds are those of its
    clock. Its decision travels with the step. Evaluations are those of `hvd_tf.estimator.evaluate`:
    by all ranks together, each record once.

    BroadcastGlobalVariablesHook(0) and EndTogetherHook() are added if `train_spec.hooks` has none.
    So ranks may run out of data at different steps. With EndTogetherHook(when="last") among the
    hooks no batch is lost. A rank that waits takes part in evaluations. While rank 0 waits, nothing
    is saved or evaluated before the end. A hook may end the training on one rank, as
    `tf.estimator.experimental.stop_if_no_decrease_hook` does on rank 0.

    Args:
      estimator: a tf.estimator.Estimator, with `run_config` or any other RunConfig. Only rank 0
        writes checkpoints or summaries.
      train_spec: tf.estimator.TrainSpec. Its input_fn gives each rank its own share. max_steps
        counts global steps, which all ranks take together; see `scale_steps`. saving_listeners run
        on rank 0. So do a model's training_chief_hooks, but for hvd_tf's own: every rank runs them.
      eval_spec: tf.estimator.EvalSpec. Its input_fn gives every rank the same dataset. Exporters
        run on rank 0. throttle_secs is measured by rank 0's clock. start_delay_secs is not used, as
        in one process.

    Returns:
      The results of the last evaluation, on every rank, and what the exporters returned then.
      (None, []) if the checkpoint had reached max_steps before.

    Raises:
      ValueError: on every rank, if arguments differ between ranks.
      RuntimeError: on the other ranks, if an evaluation or an export fails on one.
    """
    _check_same(train_spec, eval_spec)
    if is_trained(estimator, train_spec.max_steps, _WHAT):
        return None, []
    trainer = _Trainer(estimator)
    saver = (
        Saver(trainer.estimator.model_dir, trainer.saver_of_model, train_spec.saving_listeners)
        if rank() == 0
        else None
    )
    schedule = Schedule(estimator.config, eval_spec.throttle_secs)
    evaluations = _Evaluations(estimator, eval_spec, train_spec.max_steps)
    hooks = [*_added(train_spec.hooks), *train_spec.hooks]
    together = next(hook for hook in hooks if isinstance(hook, EndTogetherHook))
    together.call_when_asked(evaluations.run)
    hooks += [saver] if saver else []
    hooks.append(_DecisionHook(schedule, saver, evaluations, together))
    train_to(trainer.estimator, train_spec.input_fn, hooks, None, train_spec.max_steps)
    return evaluations.results, evaluations.exported


class _Trainer:
    """The user's Estimator for training. This module does the saving."""

    def __init__(self, estimator: Any) -> None:
        self.scaffold: Optional[v1.train.Scaffold] = None
        quiet = {} if rank() == 0 else {"save_summary_steps": None, "log_step_count_steps": None}
        self.estimator = tf_estimator.Estimator(
            self._model_fn(estimator.model_fn),
            model_dir=estimator.model_dir,
            config=estimator.config.replace(
                save_checkpoints_steps=None, save_checkpoints_secs=None, **quiet
            ),
            params=estimator.params,
            # Other ranks may not reach the checkpoint. They get rank 0's values by broadcast.
            warm_start_from=compat.warm_start_of(estimator) if rank() == 0 else None,
        )

    def saver_of_model(self) -> Any:
        """The model's own saver, once the model is built. None: it has none."""
        return None if self.scaffold is None else self.scaffold.saver

    def _model_fn(self, given: Callable[..., Any]) -> Callable[..., Any]:
        def model_fn(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
            del params  # the Estimator's model_fn has them already
            spec = given(features, labels, mode, config)
            self.scaffold = spec.scaffold
            if rank() == 0:
                return spec
            # Each rank's RunConfig is a chief's.
            hooks = [h for h in spec.training_chief_hooks or () if isinstance(h, _OF_ALL_RANKS)]
            return spec._replace(training_chief_hooks=hooks)

        return model_fn


class _DecisionHook(v1.train.SessionRunHook):
    """Makes all ranks do after a step what rank 0 has decided. The decision travels in the step."""

    def __init__(
        self,
        schedule: Schedule,
        saver: Optional[Saver],
        evaluations: _Evaluations,
        together: EndTogetherHook,
    ) -> None:
        self._schedule = schedule
        self._saver = saver
        self._evaluations = evaluations
        self._together = together
        self._wanted: Any = None
        self._decision: Any = None
        self._step: Any = None

    def begin(self) -> None:
        announce_hook(_WHAT)
        self._step = v1.train.get_global_step()
        self._wanted = v1.placeholder_with_default(0, [], name="train_and_evaluate_wanted")
        # A rank that finds no more data sends none. Rank 0 may be that rank, so this is a sum.
        with tf.control_dependencies(data_of_step()):
            wanted = tf.identity(self._wanted)
        with tf.device("CPU"):  # where the number is, and is wanted
            self._decision = ops.allreduce(
                wanted,
                op=Sum,
                name=f"{_WHAT}/decision",
                ignore_name_scope=True,
                process_set=global_process_set,
            )

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        del coord
        self._schedule.started(int(session.run(self._step)))

    def before_run(self, run_context: Any) -> Any:
        wanted = 0
        if rank() == 0:
            # It is read here, because a step may fetch it from before or after its update.
            step = int(run_context.session.run(self._step))
            wanted = self._schedule.after_step(step + 1)
        return v1.train.SessionRunArgs(self._decision, {self._wanted: wanted})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        decision = int(run_values.results)
        session = run_context.session
        if decision & SAVE and self._saver:
            if compat.save_checkpoint(self._saver, session, int(session.run(self._step))):
                run_context.request_stop()  # a listener asked for it
        if decision & EVALUATE:
            step = int(session.run(self._step))
            self._together.call(step)
            self._evaluations.run(step)

    def end(self, session: v1.Session) -> None:
        step = int(session.run(self._step))
        if step != self._evaluations.step:
            self._evaluations.run(step)


class _Evaluations:
    """Evaluates and exports, and keeps the last results."""

    def __init__(self, estimator: Any, eval_spec: Any, max_steps: Optional[int]) -> None:
        self._estimator = estimator
        self._spec = eval_spec
        self._max_steps = max_steps
        self.step: Optional[int] = None
        """The global step of the last evaluation."""
        self.results: Optional[dict[str, Any]] = None
        self.exported: list[Any] = []

    def run(self, step: int) -> None:
        """Evaluates rank 0's latest checkpoint, which is of this global step, and exports it."""
        spec = self._spec
        self.step = step
        self.results = evaluate(
            self._estimator, spec.input_fn, steps=spec.steps, hooks=spec.hooks, name=spec.name
        )
        if spec.exporters:
            self.exported = on_rank_0(self._export, f"{_WHAT}/export")

    def _export(self) -> list[Any]:
        assert self.step is not None  # of the evaluation before
        final = bool(self._max_steps and self.step >= self._max_steps)
        return [
            exporter.export(
                self._estimator,
                os.path.join(self._estimator.model_dir, "export", exporter.name),
                self._estimator.latest_checkpoint(),
                self.results,
                final,
            )
            for exporter in self._spec.exporters
        ]


def _added(hooks: Sequence[v1.train.SessionRunHook]) -> list[v1.train.SessionRunHook]:
    """The hooks that every rank needs and the user has not given."""
    needed = {
        BroadcastGlobalVariablesHook: lambda: BroadcastGlobalVariablesHook(0),
        EndTogetherHook: EndTogetherHook,
    }
    return [
        make() for kind, make in needed.items() if not any(isinstance(hook, kind) for hook in hooks)
    ]


def _check_same(train_spec: Any, eval_spec: Any) -> None:
    """Raises on every rank if a specification is not one, or differs between ranks."""
    for argument, given, kind in (
        ("train_spec", train_spec, tf_estimator.TrainSpec),
        ("eval_spec", eval_spec, tf_estimator.EvalSpec),
    ):
        if not isinstance(given, kind):
            must = f"must be a tf.estimator.{kind.__name__}"
            wrong = f"{_WHAT}: {argument} {must}. Received: {given!r}"
            with suppress(ValueError):  # of all ranks, with these words
                meet(_WHAT, {ERROR: wrong})
            raise TypeError(wrong)
    meet(
        _WHAT,
        {
            "train_spec.max_steps": train_spec.max_steps,
            "eval_spec.steps": eval_spec.steps,
            "eval_spec.name": eval_spec.name,
            "eval_spec.exporters": [exporter.name for exporter in eval_spec.exporters],
        },
    )
