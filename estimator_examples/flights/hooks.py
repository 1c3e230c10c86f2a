# SPDX-License-Identifier: Apache-2.0
"""SessionRunHooks that watch a training run: its progress, its speed, its variables at the end."""

from __future__ import annotations

import sys
import time
from typing import Optional

import numpy as np
import tensorflow as tf
from tqdm import tqdm
from turns import Turn

v1 = tf.compat.v1
Context = v1.train.SessionRunContext
Values = v1.train.SessionRunValues
Variables = dict[str, np.ndarray]


class Progress(v1.train.SessionRunHook):
    """A progress bar with the loss on a terminal; elsewhere a line for every tenth of the run."""

    def __init__(self, steps: int, loss: str = "loss:0", loss_every: int = 50) -> None:
        """steps: of the whole run; loss: the tensor to show, fetched every `loss_every` steps.

        That of a line is of its own step.
        """
        self.steps, self.loss, self.loss_every = steps, loss, loss_every
        self.done = 0
        self.seen = float("nan")
        self.on_terminal = sys.stderr.isatty()

    def begin(self) -> None:
        self.bar = tqdm(
            total=self.steps, unit="step", disable=not self.on_terminal, dynamic_ncols=True
        )

    def before_run(self, run_context: Context) -> Optional[v1.train.SessionRunArgs]:
        if self.done % self.loss_every and not self._has_line(self.done + 1):
            return None
        return v1.train.SessionRunArgs(run_context.session.graph.get_tensor_by_name(self.loss))

    def after_run(self, run_context: Context, run_values: Values) -> None:
        self.done += 1
        if run_values.results is not None:
            self.seen = float(run_values.results)
            self.bar.set_postfix(loss=f"{self.seen:.4f}", refresh=False)
        self.bar.update()
        if self._has_line(self.done):
            print(f"step {self.done}/{self.steps}  loss {self.seen:.4f}", file=sys.stderr)

    def end(self, session: v1.Session) -> None:
        self.bar.close()

    def _has_line(self, step: int) -> bool:
        return not self.on_terminal and step % max(1, self.steps // 10) == 0


class Speed(v1.train.SessionRunHook):
    """Steps per second after the first `skip` steps, which build the graph and warm the caches.

    What happens between steps, an evaluation for example, is not counted.
    """

    def __init__(self, skip: int) -> None:
        self.skip, self.done = skip, 0
        self.made = self.began = self.last = time.perf_counter()
        self.in_steps_s = 0.0

    def before_run(self, run_context: Context) -> None:
        self.began = time.perf_counter()

    def after_run(self, run_context: Context, run_values: Values) -> None:
        self.done += 1
        self.last = time.perf_counter()
        if self.done > self.skip:
            self.in_steps_s += self.last - self.began

    @property
    def seconds(self) -> float:
        """From the hook's making to the last step, start and evaluations included."""
        return self.last - self.made

    @property
    def steps_per_s(self) -> float:
        """Global steps per second, 0 when the run was not longer than `skip`."""
        return (self.done - self.skip) / self.in_steps_s if self.in_steps_s > 0 else 0.0


class Turns(v1.train.SessionRunHook):
    """Trains turn by turn when told to, and tells how long each took.

    That is without the first step of a turn, which other ranks may have begun before.
    """

    def __init__(self, turn: Turn, steps: int) -> None:
        """steps: of a turn, 2 or more."""
        self.turn, self.steps, self.done, self.began = turn, steps, 0, 0.0

    def before_run(self, run_context: Context) -> None:
        if self.done % self.steps == 0:
            self.turn.wait()

    def after_run(self, run_context: Context, run_values: Values) -> None:
        self.done += 1
        if self.done % self.steps == 1:
            self.began = time.perf_counter()
        elif self.done % self.steps == 0:
            self.turn.tell(time.perf_counter() - self.began)


class Keep(v1.train.SessionRunHook):
    """Keeps the variables of the model as they are after the last step."""

    def end(self, session: v1.Session) -> None:
        names = {v.op.name: v for v in v1.trainable_variables()}
        self.variables: Variables = session.run(names)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The norm of one - other, against that of the other."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))
