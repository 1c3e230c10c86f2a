# SPDX-License-Identifier: Apache-2.0
"""Hooks that every rank runs: metrics averaged over the ranks, and a learning rate by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union

import tensorflow as tf

from hvd_tf import ops
from hvd_tf._internal.compat import v1
from hvd_tf._internal.hooks import announce_hook
from hvd_tf._internal.runtime import Sum, global_process_set, rank
from hvd_tf._internal.step_data import data_of_step

Named = Union[str, tf.Tensor]


class MetricAverageHook(v1.train.SessionRunHook):
    """Averages scalars over the ranks every so many steps, and logs them on rank 0.

    The averages are a part of the training step: one allreduce of one small vector. So every rank
    must pass this hook, with the same tensors and interval. BroadcastGlobalVariablesHook compares
    them when the session is made. If they differ, it fails on every rank.

    Attributes:
      averages: the newest averages by name, the same on every rank. Empty before the first.
    """

    def __init__(
        self,
        tensors: Union[Mapping[str, Named], Sequence[str]],
        every_n_steps: int = 100,
        log: Optional[Callable[[str], None]] = None,
    ) -> None:
        """Nothing is looked up before the graph is complete.

        Args:
          tensors: a mapping from the name to log under to a scalar of any numeric dtype. The scalar
            is a tensor, or the name of one in the graph ("loss" or "loss:0"). Or a list of such
            names.
          every_n_steps: the interval in session runs. The first run counts.
          log: a function that takes the line, on rank 0. Default: tf.compat.v1.logging.info.

        Raises:
          ValueError: no tensors, or an interval below 1.
        """
        super().__init__()
        if not tensors or isinstance(tensors, str):
            raise ValueError(
                "MetricAverageHook: tensors must be a list of tensor names or a dict of tensors. "
                f"Received: {tensors!r}"
            )
        if every_n_steps < 1:
            raise ValueError(
                f"MetricAverageHook: every_n_steps must be 1 or more. Received: {every_n_steps!r}"
            )
        named = tensors.items() if isinstance(tensors, Mapping) else zip(tensors, tensors)
        self._tensors = sorted(named, key=lambda pair: pair[0])
        self._every_n_steps = every_n_steps
        self._log = log or v1.logging.info
        self._runs = 0
        self._average: Optional[tf.Tensor] = None
        self.averages: dict[str, float] = {}

    def begin(self) -> None:
        """Builds the average. Raises ValueError for a tensor that is missing or no scalar."""
        names = [name for name, _ in self._tensors]
        announce_hook(f"MetricAverageHook({', '.join(names)}; every {self._every_n_steps} steps)")
        scalars = [_scalar(name, tensor) for name, tensor in self._tensors]
        # The last element counts the ranks: one that has no more data is not among them, and must
        # not have begun.
        with tf.control_dependencies(data_of_step([scalar.op for scalar in scalars])):
            mine = tf.stack([*scalars, tf.ones([], scalars[0].dtype)])
        total = ops.allreduce(
            mine,
            op=Sum,
            name=f"metric_average_hook/{'/'.join(names)}",
            ignore_name_scope=True,
            process_set=global_process_set,
        )
        self._average = total[:-1] / total[-1]

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Begins counting. All ranks make their sessions together."""
        del session, coord
        self._runs = 0

    def before_run(self, run_context: Any) -> Optional[Any]:
        """Asks for the averages when they are due. That is at the same run on every rank."""
        del run_context
        self._runs += 1
        if (self._runs - 1) % self._every_n_steps:
            return None
        step = v1.train.get_global_step()
        fetches = {"average": self._average}
        if step is not None:
            fetches["step"] = step
        return v1.train.SessionRunArgs(fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Keeps and logs them."""
        del run_context
        if run_values.results is None:
            return
        names = [name for name, _ in self._tensors]
        self.averages = dict(zip(names, run_values.results["average"].tolist()))
        if rank() == 0:
            values = ", ".join(f"{name} = {value:.7g}" for name, value in self.averages.items())
            step = run_values.results.get("step")
            where = "" if step is None else f" (step {step})"
            self._log(f"averages over the ranks: {values}{where}")


def _scalar(name: str, tensor: Named) -> tf.Tensor:
    """The scalar as float64, for the average."""
    if isinstance(tensor, str):
        full = tensor if ":" in tensor else f"{tensor}:0"
        try:
            tensor = v1.get_default_graph().get_tensor_by_name(full)
        except (KeyError, ValueError):
            raise ValueError(
                f"MetricAverageHook: the graph has no tensor {full!r}: give it that name with "
                "tf.identity(value, name) in the model_fn"
            ) from None
    if tensor.shape.num_elements() != 1:
        raise ValueError(
            f"MetricAverageHook: {name} must be a scalar, but {tensor.name} has shape "
            f"{tensor.shape}: reduce it first, with tf.reduce_mean for example"
        )
    return tf.cast(tf.reshape(tensor, []), tf.float64)


class LearningRateHook(v1.train.SessionRunHook):
    """Sets a learning-rate variable before every step, from the global step.

    It is for a schedule from outside the model_fn:

        rate = tf.compat.v1.get_variable("learning_rate", initializer=0.1, trainable=False)
        ...
        LearningRateHook("learning_rate", lambda step: hvd.estimator.warm_up(0.1, 500, step))

    It has no collective: the ranks' global steps are equal, and so are the rates.
    """

    def __init__(self, variable: Any, schedule: Callable[[int], float]) -> None:
        """variable: a scalar variable or its name. schedule: a function of the global step."""
        super().__init__()
        self._variable = variable
        self._schedule = schedule
        self._fed: Any = None
        self._assign: Any = None
        self._global_step: Any = None
        self._rate: Optional[float] = None

    def begin(self) -> None:
        """Builds the assignment. Raises ValueError without the variable or the global step."""
        variable = _variable(self._variable)
        self._global_step = v1.train.get_global_step()
        if self._global_step is None:
            raise ValueError(
                "LearningRateHook: the graph has no global step: make one with "
                "tf.compat.v1.train.get_or_create_global_step()"
            )
        self._fed = v1.placeholder(variable.dtype.base_dtype, [])
        self._assign = v1.assign(variable, self._fed).op

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Forgets the rate of the last session."""
        del session, coord
        self._rate = None

    def before_run(self, run_context: Any) -> None:
        """Assigns the rate of the coming step if it has changed."""
        # It is read here, because a step may fetch it from before or after its update.
        rate = float(self._schedule(int(run_context.session.run(self._global_step))))
        if rate != self._rate:
            run_context.session.run(self._assign, {self._fed: rate})
            self._rate = rate


def _variable(variable: Any) -> Any:
    if not isinstance(variable, str):
        return variable
    name = variable.split(":")[0]
    for candidate in v1.global_variables() + v1.local_variables():
        if candidate.op.name == name:
            return candidate
    raise ValueError(
        f"LearningRateHook: the graph has no variable {name!r}: make it in the model_fn with "
        "tf.compat.v1.get_variable(name, initializer=..., trainable=False)"
    )
