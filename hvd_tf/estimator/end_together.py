# SPDX-License-Identifier: Apache-2.0
"""`EndTogetherHook`: ranks that run out of data at different steps end at the same step."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.hooks import announce_hook
from hvd_tf._internal.runtime import rank, size
from hvd_tf._internal.scopes import end_training
from hvd_tf.functions import allgather_object

# How a rank's step, or its loop, has ended.
_LEFT = "left"  # the loop is over: the last step, a hook that stops it, or the program
_ENDED = "ended"  # the step found no more data
_TOLD = "told"  # the step failed because a peer's gradients will not come
_FAILED = "failed"  # anything else


class EndTogetherHook(v1.train.SessionRunHook):
    """All ranks end their training loop when the first of them does.

    Without it, a rank that runs out of data ends, and the others fail, because they still wait for
    its gradients. With it the others end like the first, at the same global step. Hooks see an
    ordinary end, and the last checkpoint is saved. A batch that a rank has begun with is lost. A
    program that catches tf.errors.OutOfRangeError to read its data again sees it on every rank.

    The ranks agree with one message at the end of the loop. Steps cost nothing more. If a rank's
    step fails with an error, every rank raises its own error, as without this hook.

    Every rank must pass this hook and BroadcastGlobalVariablesHook, which checks that.
    """

    def __init__(self, when: str = "first") -> None:
        """when: "first" ends all ranks with the first rank whose data ends.

        Raises:
          NotImplementedError: "last", which would go on until all data is used.
          ValueError: anything else.
        """
        super().__init__()
        if when == "last":
            raise NotImplementedError(
                'EndTogetherHook(when="last"): a rank without data cannot take part in reductions '
                'yet (hvd.join is not offered); use when="first", or repeat the shorter shards'
            )
        if when != "first":
            raise ValueError(f'EndTogetherHook: when must be "first". Received: {when!r}')
        # Whether the ranks have since the last step began; and whether one has left its loop.
        self._agreed = False
        self._over = False

    def begin(self) -> None:
        """Let BroadcastGlobalVariablesHook know that this rank has the hook."""
        announce_hook(type(self).__name__)

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Watch the session's runs, because a hook is not told when a run fails."""
        del coord
        self._agreed = self._over = False
        if size() == 1:
            return
        run = session.run

        @functools.wraps(run)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except tf.errors.OpError as error:
                if self._agreed:
                    raise
                self._after_failure(error)

        session.run = watched

    def before_run(self, run_context: Any) -> None:
        """A step begins. It may follow an end of the data, if a program reads its data again."""
        del run_context
        self._agreed = self._over

    def end(self, session: v1.Session) -> None:
        """The loop has ended on this rank. End it on the others."""
        if size() == 1 or self._agreed:
            return
        step = v1.train.get_global_step(session.graph)
        where = "" if step is None else f" at global step {session.run(step)}"
        try:
            self._agree(_LEFT, f"its training loop ended{where}")
        except tf.errors.UnknownError as error:
            # A peer is lost, and has its own report. This rank's training is complete.
            v1.logging.warning("EndTogetherHook: the other ranks have not ended: %s", error.message)

    def _after_failure(self, error: tf.errors.OpError) -> NoReturn:
        """Raise what the step's failure means, given the states of the other ranks."""
        # Peers were told by an announcement, or by the step that this rank has aborted.
        if isinstance(error, tf.errors.OutOfRangeError):
            state, text = _ENDED, "it has no more data"
        elif isinstance(error, tf.errors.UnknownError):
            state, text = _TOLD, "its training step failed as well"
        else:
            what = f"{type(error).__name__}: {error.message}".splitlines()[0]
            state, text = _FAILED, f"its training step failed: {what}"
        try:
            states = self._agree(state, text)
            if not self._over:
                # Every rank's step has failed. Programs may go on, but no rank before every rank
                # has sent this message.
                end_training("")
                allgather_object(None, name="end_together_hook/taken_back")
        except tf.errors.UnknownError:  # a peer is lost; this rank's error says more
            raise error from None
        first = next((peer for peer, how in enumerate(states) if how in (_LEFT, _ENDED)), None)
        if state == _ENDED or first is None or _FAILED in states:
            raise error
        message = f"rank {first} ended its training loop, so rank {rank()} does at the same step"
        v1.logging.info("EndTogetherHook: %s", message)
        # MonitoredSession takes this for an ordinary end of the data.
        raise tf.errors.OutOfRangeError(None, None, message) from error

    def _agree(self, state: str, text: str) -> Sequence[str]:
        """All ranks' states, once every rank's step has failed or its loop is over."""
        end_training(text)
        self._agreed = True
        states = allgather_object(state, name="end_together_hook")
        self._over = _LEFT in states
        return states
