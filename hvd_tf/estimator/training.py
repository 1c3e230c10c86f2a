# SPDX-License-Identifier: Apache-2.0
"""`train`: as `Estimator.train`, on all ranks. They agree first whether there is anything to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.facts import ERROR, TRAINED_ALREADY, check_same, exchange_at
from hvd_tf._internal.hooks import BroadcastGlobalVariablesHook
from hvd_tf._internal.objects import allgather_object, broadcast_object
from hvd_tf._internal.runtime import rank, size
from hvd_tf._internal.scopes import leave_training


def train(
    estimator: Any,
    input_fn: Callable[..., Any],
    hooks: Optional[Sequence[v1.train.SessionRunHook]] = None,
    steps: Optional[int] = None,
    max_steps: Optional[int] = None,
    saving_listeners: Optional[Sequence[Any]] = None,
) -> Any:
    """Trains as `estimator.train` does in one process, with the same arguments.

    Call it on every rank. Where rank 0's checkpoint has reached max_steps, no rank trains. So a job
    may be started again after its end: `estimator.train` itself would return on rank 0 alone.

    BroadcastGlobalVariablesHook(0) is added if `hooks` has none. For ranks that run out of data at
    different steps add EndTogetherHook.

    Args:
      estimator: a tf.estimator.Estimator, with `run_config` or any other RunConfig. The job's
        checkpoints are in rank 0's model_dir.
      input_fn: gives each rank its own share.
      hooks: of this rank.
      steps: how many steps from rank 0's checkpoint. All ranks take them together.
      max_steps: the global step to end at, in place of `steps`. See `scale_steps`.
      saving_listeners: run on rank 0, which saves.

    Returns:
      The estimator.

    Raises:
      ValueError: on every rank, if both steps and max_steps are given, one is below 1, or they
        differ between ranks.
    """
    mine = {ERROR: _wrong(steps, max_steps), "steps": steps, "max_steps": max_steps}
    meet("train", mine)
    if is_trained(estimator, max_steps, "train"):
        return estimator
    given = list(hooks or ())
    if not any(isinstance(hook, BroadcastGlobalVariablesHook) for hook in given):
        given.insert(0, BroadcastGlobalVariablesHook(0))
    listeners = saving_listeners if rank() == 0 else None
    return train_to(estimator, input_fn, given, steps, max_steps, listeners)


def _wrong(steps: Optional[int], max_steps: Optional[int]) -> str:
    if steps is not None and max_steps is not None:
        return f"train: steps is {steps} and max_steps is {max_steps}; give one of them"
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value < 1:
            return f"train: {name} is {value}; give at least 1, or None for the whole input"
    return ""


def meet(what: str, facts: dict[str, Any]) -> None:
    """All ranks are about to train. Raises ValueError on every rank if their facts differ.

    Peers that wait for this rank's gradients, because it has left its training, are told.
    """
    if size() > 1:
        leave_training(
            f"it is about to {what}. Every rank must make the same calls in the same order"
        )
    try:
        everyones = exchange_at(what, facts, TRAINED_ALREADY)
    finally:
        if size() > 1:
            leave_training("")
    # No rank goes on before every rank has sent this message.
    allgather_object(None, name=f"{what}/taken_back")
    for fact in facts:
        if fact != ERROR:
            check_same(everyones, fact, f"{what}: {fact}", "Give the same on every rank")


def train_to(
    estimator: Any,
    input_fn: Callable[..., Any],
    hooks: Sequence[v1.train.SessionRunHook],
    steps: Optional[int],
    max_steps: Optional[int],
    saving_listeners: Optional[Sequence[Any]] = None,
) -> Any:
    """`estimator.train`, also where another rank than 0 has a checkpoint that is at the end."""
    given = list(hooks)
    if rank() > 0 and (steps is not None or max_steps is not None):
        given.append(v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps))
        steps = max_steps = None
    return estimator.train(
        input_fn,
        hooks=given,
        steps=steps,
        max_steps=max_steps,
        saving_listeners=saving_listeners,
    )


def is_trained(estimator: Any, max_steps: Optional[int], what: str) -> bool:
    """Whether rank 0's checkpoint has reached max_steps. Estimator.train would do nothing then.

    A collective call, unless max_steps is None.
    """
    step = 0
    if rank() == 0 and max_steps is not None and estimator.latest_checkpoint():
        # A checkpoint of objects has no such name. Estimator.train takes that for 0 too.
        with suppress(tf.errors.OpError):
            step = int(estimator.get_variable_value(v1.GraphKeys.GLOBAL_STEP))
    is_done = max_steps is not None and broadcast_object(step, 0, name=f"{what}/step") >= max_steps
    if is_done:
        v1.logging.info(f"{what}: the checkpoint has reached max_steps={max_steps}")
    return is_done
