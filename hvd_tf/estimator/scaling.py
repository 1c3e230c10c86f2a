# SPDX-License-Identifier: Apache-2.0
"""Step counts and learning rates for `size()` times the batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from numbers import Integral
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf._internal.runtime import size

LearningRate = Union[float, tf.Tensor, Callable[[], Any]]


def scale_steps(steps: Optional[int]) -> Optional[int]:
    """The steps of a job in which the ranks see as many examples as one process in `steps`.

    The global step counts synchronous steps, one for all ranks together. So scale everything that
    is given in steps of one process: `steps` and `max_steps` of training, the last_step of a
    StopAtStepHook, the interval of hooks and of checkpoints, the boundaries of a schedule. Do not
    scale the `steps` of an evaluation, nor what was measured in this job's own global steps.

    Args:
      steps: 1 or more. None, which means no limit for Estimator, stays None.

    Returns:
      steps // size(), but at least 1.

    Raises:
      ValueError: steps is not a positive integer, or it is called before `init`.
    """
    if steps is None:
        return None
    if not isinstance(steps, Integral) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"scale_steps: steps must be an integer of 1 or more. Received: {steps!r}")
    return max(1, int(steps) // size())


def scale_learning_rate(learning_rate: LearningRate, rule: str = "linear") -> Any:
    """The learning rate for a batch that is `size()` times that of one process.

    Args:
      learning_rate: the rate of one process. A number, a scalar tensor, or a function without
        arguments that returns one of these.
      rule: "linear" multiplies by size() (Goyal et al. 2017, "Accurate, Large Minibatch SGD",
        with a warm-up: see `warm_up`), "sqrt" by its square root (often better for Adam and
        Adagrad), "none" by 1.

    Returns:
      A float, a tensor, or a function that scales on each call, as `learning_rate` is.

    Raises:
      ValueError: another rule, a number that is not positive and finite, or a call before `init`.
    """
    rules = {"linear": float(size()), "sqrt": math.sqrt(size()), "none": 1.0}
    if rule not in rules:
        names = ", ".join(f'"{name}"' for name in rules)
        raise ValueError(f"scale_learning_rate: rule must be one of {names}. Received: {rule!r}")
    return _scaled(learning_rate, rules[rule])


def _scaled(learning_rate: LearningRate, factor: float) -> Any:
    if callable(learning_rate) and not isinstance(learning_rate, (tf.Tensor, tf.Variable)):

        @functools.wraps(learning_rate)
        def scaled() -> Any:
            return _scaled(learning_rate(), factor)

        return scaled
    if tf.is_tensor(learning_rate) or isinstance(learning_rate, tf.Variable):
        tensor: Any = learning_rate
        return tensor * tf.constant(factor, tensor.dtype.base_dtype)
    number = float(learning_rate)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(
            f"scale_learning_rate: learning_rate must be positive. Received: {learning_rate!r}"
        )
    return number * factor
