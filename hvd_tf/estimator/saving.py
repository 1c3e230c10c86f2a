# SPDX-License-Identifier: Apache-2.0
"""When rank 0 saves and all ranks evaluate, and the hook that saves. For `train_and_evaluate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Optional

from hvd_tf._internal.compat import v1

# What rank 0 asks all ranks to do after a step: sums of these.
SAVE = 1
EVALUATE = 2


class Saver(v1.train.CheckpointSaverHook):
    """Saves checkpoints at the start, when it is told to, and at the end. Rank 0 only."""

    def __init__(
        self, model_dir: str, saver_of_model: Callable[[], Any], listeners: Sequence[Any]
    ) -> None:
        """saver_of_model: the model's own saver, or None. Called when there is a session."""
        # The interval is never used.
        super().__init__(model_dir, save_steps=1, listeners=list(listeners))
        self._saver_of_model = saver_of_model

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Saves, with the model's own saver: the scaffold is complete by now."""
        # Estimator makes a saver of its own if the model has none.
        saver = self._saver_of_model()
        if saver is not None:
            self._saver = saver
        super().after_create_session(session, coord)

    def before_run(self, run_context: Any) -> None:
        """Leaves when to save to `Schedule`."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Leaves when to save to `Schedule`."""


class Schedule:
    """When to save and to evaluate, by the configuration and the clock of rank 0."""

    def __init__(self, config: Any, throttle_s: float) -> None:
        self._every_steps = config.save_checkpoints_steps
        self._every_s = config.save_checkpoints_secs
        self._throttle_s = throttle_s
        self._saved_step = 0
        self._saved_at_s = 0.0
        self._evaluated_at_s: Optional[float] = None

    def started(self, step: int) -> None:
        """A session begins at this global step, which was just saved."""
        self._saved_step, self._saved_at_s = step, time.monotonic()

    def after_step(self, step: int) -> int:
        """What is to be done once this global step is reached."""
        now_s = time.monotonic()
        by_steps = self._every_steps and step - self._saved_step >= self._every_steps
        by_clock = self._every_s and now_s - self._saved_at_s >= self._every_s
        if not (by_steps or by_clock):
            return 0
        self._saved_step, self._saved_at_s = step, now_s
        if self._evaluated_at_s is not None and now_s - self._evaluated_at_s < self._throttle_s:
            return SAVE
        self._evaluated_at_s = now_s
        return SAVE | EVALUATE
