# SPDX-License-Identifier: Apache-2.0
"""Learning rates that follow the global step: in the graph, or as numbers.

Each function takes a global step that is a tensor, as in a model_fn, or a number, as in
`LearningRateHook`. It returns the same kind. For polynomial, exponential or cosine decay, use
TensorFlow's functions (`tf.compat.v1.train.cosine_decay(...)`), with steps of `scale_steps`, as the
`learning_rate` of `warm_up`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.runtime import size

Multiplier = Union[float, Callable[[Any], Any]]


def warm_up(learning_rate: Any, steps: int, global_step: Optional[Any] = None) -> Any:
    """Begins with the learning rate of one process and reaches `learning_rate` after `steps` steps.

    This is the gradual warm-up of Goyal et al. 2017, "Accurate, Large Minibatch SGD". It is linear
    from learning_rate / size() at step 0 to learning_rate at step `steps`. With one rank nothing
    changes.

    Args:
      learning_rate: the scaled rate (`scale_learning_rate`). A number, or a scalar tensor such as
        another schedule.
      steps: the synchronous steps of the warm-up, 0 or more (in the paper: five epochs).
      global_step: a scalar tensor or variable, or a number. None: the default graph's global step.

    Returns:
      A scalar tensor of the learning rate's dtype (float32 for a number), or a float where
      global_step is a number.

    Raises:
      ValueError: steps is negative; there is no global step; or before `init`.
    """
    if steps < 0:
        raise ValueError(f"warm_up: steps must be 0 or more. Received: {steps!r}")
    step = _step("warm_up", global_step)
    if isinstance(step, Real):
        share = min(float(step) / steps, 1.0) if steps else 1.0
        return float(learning_rate) * (1 + share * (size() - 1)) / size()
    learning_rate = _tensor(learning_rate)
    if steps == 0:
        return learning_rate
    # It is float64, because float32 counts steps up to 16.7 million only.
    share = tf.minimum(tf.cast(step, tf.float64) / steps, 1.0)
    factor = (1 + share * (size() - 1)) / size()
    return learning_rate * tf.cast(factor, learning_rate.dtype)


def piecewise(
    learning_rate: Any, pieces: Sequence[tuple[int, Multiplier]], global_step: Optional[Any] = None
) -> Any:
    """Multiplies the learning rate by another factor from each of several steps on.

    `[(0, 1.0), (9000, 0.1), (18000, 0.01)]` does what three of Horovod's
    LearningRateScheduleCallbacks do. Before the first of these steps, the learning rate stays as it
    is.

    Args:
      learning_rate: a number or a scalar tensor.
      pieces: (first step, multiplier) in ascending order. A multiplier is a number, or a function
        of the global step (float64 scalar tensor, or number) for one that changes from step to
        step.
      global_step: as in `warm_up`.

    Returns:
      As `warm_up`.

    Raises:
      ValueError: pieces is empty or not ascending; there is no global step.
    """
    firsts = [first for first, _ in pieces]
    if not pieces or any(a >= b for a, b in zip(firsts, firsts[1:])):
        raise ValueError(
            "piecewise: pieces must be (first step, multiplier) with ascending steps. "
            f"Received: {list(pieces)!r}"
        )
    step = _step("piecewise", global_step)
    if isinstance(step, Real):
        current = [multiplier for first, multiplier in pieces if first <= float(step)]
        return float(learning_rate) * (_factor(current[-1], step) if current else 1.0)
    learning_rate = _tensor(learning_rate)
    step = tf.cast(step, tf.float64)
    factor = tf.ones([], tf.float64)
    for first, multiplier in pieces:
        chosen = _factor(multiplier, step)
        if isinstance(chosen, Real):  # tf.cast would round it to float32 first
            chosen = tf.constant(chosen, tf.float64)
        factor = tf.where(step >= float(first), tf.cast(chosen, tf.float64), factor)
    return learning_rate * tf.cast(factor, learning_rate.dtype)


def _tensor(learning_rate: Any) -> tf.Tensor:
    # An int would stay one, and be multiplied by whole numbers.
    is_number = isinstance(learning_rate, Real)
    return tf.convert_to_tensor(float(learning_rate) if is_number else learning_rate)


def _factor(multiplier: Multiplier, step: Any) -> Any:
    return multiplier(step) if callable(multiplier) else multiplier


def _step(caller: str, global_step: Optional[Any]) -> Any:
    if isinstance(global_step, Real):
        if not math.isfinite(global_step) or global_step < 0:
            raise ValueError(f"{caller}: global_step must be 0 or more. Received: {global_step!r}")
        return global_step
    if global_step is None:
        global_step = v1.train.get_global_step()
    if global_step is None:
        raise ValueError(
            f"{caller}: the graph has no global step: make one with "
            "tf.compat.v1.train.get_or_create_global_step() or pass global_step="
        )
    return tf.convert_to_tensor(global_step)
