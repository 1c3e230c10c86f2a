# SPDX-License-Identifier: Apache-2.0
"""`train`: as `Estimator.train`, on all ranks. They agree first whether there is anything to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

from hvd_tf._internal.compat import v1
from hvd_tf._internal.facts import check_same, exchange
from hvd_tf._internal.hooks import BroadcastGlobalVariablesHook
from hvd_tf._internal.meeting import everywhere
from hvd_tf._internal.objects import broadcast_object
from hvd_tf._internal.runtime import rank
from hvd_tf.estimator.end_together import EndTogetherHook


def train(
    estimator: Any,
    input_fn: Callable[..., Any],
    hooks: Optional[Sequence[v1.train.SessionRunHook]] = None,
    steps: Optional[int] = None,
    max_steps: Optional[int] = None,
    saving_listeners: Optional[Sequence[Any]] = None,
) -> Any:
    """Train as `estimator.train` does in one process, with the same arguments.

    Call it on every rank. Where rank 0's checkpoint has reached max_steps, no rank trains. So a job
    may be started again after its end: `estimator.train` itself would return on rank 0 alone.

    BroadcastGlobalVariablesHook(0) and EndTogetherHook() are added if `hooks` has none.

    Args:
      estimator: a tf.estimator.Estimator, with `run_config` or any other RunConfig. Its model_dir
        is that of all ranks on rank 0 alone.
      input_fn: gives each rank its own share.
      hooks: of this rank.
      steps: how many steps from rank 0's checkpoint. All ranks take them together.
      max_steps: the global step to end at, in place of `steps`. See `scale_steps`.
      saving_listeners: run on rank 0, which saves.

    Returns:
      The estimator.

    Raises:
      ValueError: on every rank, if steps or max_steps differ between ranks.
    """
    what = "train"
    mine = {"steps": steps, "max_steps": max_steps}
    everyones = exchange(everywhere(lambda: mine, what), f"{what}/arguments")
    for fact in mine:
        check_same(everyones, fact, f"{what}: {fact}", "Give the same on every rank")
    if is_trained(estimator, max_steps, what):
        return estimator
    given = list(hooks or ())
    return estimator.train(
        input_fn,
        hooks=[*missing_hooks(given), *given],
        steps=steps,
        max_steps=max_steps,
        saving_listeners=saving_listeners if rank() == 0 else None,
    )


def missing_hooks(hooks: Sequence[v1.train.SessionRunHook]) -> list[v1.train.SessionRunHook]:
    """The hooks that every rank needs and the user has not given."""
    needed = {
        BroadcastGlobalVariablesHook: lambda: BroadcastGlobalVariablesHook(0),
        EndTogetherHook: EndTogetherHook,
    }
    return [
        make() for kind, make in needed.items() if not any(isinstance(hook, kind) for hook in hooks)
    ]


def is_trained(estimator: Any, max_steps: Optional[int], what: str) -> bool:
    """Whether rank 0's checkpoint has reached max_steps. Estimator.train would do nothing then.

    A collective call, unless max_steps is None.
    """
    step = 0
    if rank() == 0 and max_steps is not None and estimator.latest_checkpoint():
        step = int(estimator.get_variable_value(v1.GraphKeys.GLOBAL_STEP))
    is_done = max_steps is not None and broadcast_object(step, 0, name=f"{what}/step") >= max_steps
    if is_done:
        v1.logging.info(f"{what}: the checkpoint has reached max_steps={max_steps}")
    return is_done
