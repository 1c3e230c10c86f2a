# SPDX-License-Identifier: Apache-2.0
"""`DeltaOptimizer`: each rank takes a step of its own. Then the steps are combined, by Adasum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.accumulation import (
    add_to,
    check_assignable,
    check_passes,
    local_variable,
)
from hvd_tf._internal.compat import Variable, v1
from hvd_tf._internal.gradients import GradientReducer
from hvd_tf._internal.optimizer_wrapper import GradsAndVars, Optimizer, OptimizerWrapper
from hvd_tf.process_sets import registered


class DeltaOptimizer(OptimizerWrapper):
    """Reduces what the wrapped optimizer adds to the variables, not the gradients.

    The wrapped optimizer changes the variables of its rank. What has been added to a variable since
    the last reduction is its delta. In every k-th run the deltas are reduced, and each variable
    becomes what it was plus the reduced delta. So slots are those of the rank's own gradients.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
        passes: int,
    ) -> None:
        """passes is k. Raises ValueError unless it is at least 1, and for more in eager code."""
        super().__init__(optimizer, name, use_locking, reducer)
        check_passes(passes)
        self._passes = passes

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Variable]]:
        """The wrapped optimizer's `compute_gradients`. Only `apply_gradients` reduces."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return list(pairs)
        gradients, variables = zip(*pairs)
        return list(zip(self._reducer.prepare(gradients, variables), variables))

    def apply_gradients(
        self,
        grads_and_vars: GradsAndVars,
        global_step: Optional[Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """Applies this rank's gradients. In every k-th run, combines the ranks' deltas.

        Every rank must call it for the same variables, which must be equal on all ranks before the
        first run. The global step counts every run. A delta is dense, also where a gradient is
        IndexedSlices. Raises ValueError before `init`.
        """
        pairs = list(grads_and_vars)  # it may be an iterator
        this_set = registered(self.process_set)
        variables = [
            variable
            for gradient, variable in pairs
            if gradient is not None and not self._reducer.is_local(variable)
        ]
        if this_set.size == 1 or this_set.rank < 0 or not variables:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        check_passes(self._passes)
        train_ops = v1.get_collection_ref(v1.GraphKeys.TRAIN_OP)
        earlier = list(train_ops)

        def apply() -> tf.Operation:
            # Loss scaling within counts no step of a rank that overflows. So it is counted here.
            update = self._optimizer.apply_gradients(pairs)
            if global_step is None:
                return update
            with tf.control_dependencies(_ops(update)):
                return v1.assign_add(global_step, 1)

        if self._passes == 1:
            starts = [_copy(variable) for variable in variables]
            with tf.control_dependencies(starts), tf.control_dependencies(_ops(apply())):
                update = tf.group(self._combine(variables, starts), name=name)
        else:
            update = tf.group(self._combine_at_times(variables, apply), name=name)
        if not tf.executing_eagerly():
            train_ops[:] = [*earlier, update]  # without the operation inside
        return update

    def apply_within(
        self, pairs: GradsAndVars, global_step: Any, name: Any, apply: Callable[..., Any]
    ) -> Any:
        """Refuses a loss scale optimizer around this one."""
        raise ValueError(
            "op=Adasum within MixedPrecisionLossScaleOptimizer: a rank whose gradients overflow "
            "would take no part in the reduction. Wrap the other way round, in "
            "DistributedOptimizer(MixedPrecisionLossScaleOptimizer(...), op=Adasum)"
        )

    def _combine(
        self, variables: Sequence[Variable], starts: Sequence[tf.Tensor]
    ) -> list[tf.Operation]:
        deltas = [variable.read_value() - start for variable, start in zip(variables, starts)]
        reduced = self._reducer.reduce(deltas, variables)
        return [
            v1.assign(variable, start + delta)
            for variable, start, delta in zip(variables, starts, reduced)
        ]

    def _combine_at_times(
        self, variables: Sequence[Variable], apply: Callable[[], tf.Operation]
    ) -> list[Any]:
        """The starts are local variables. They are set anew in the first of k runs.

        So nothing depends on when variables are initialised, restored or broadcast.
        """
        check_assignable(variables)
        with v1.name_scope("delta_accumulation"):
            starts = [_start_of(variable) for variable in variables]
            pass_number = local_variable(lambda: tf.zeros([], tf.int64), "pass_number")

            def begin() -> tf.Tensor:
                kept = [
                    start.assign(_copy(variable), read_value=False)
                    for start, variable in zip(starts, variables)
                ]
                with tf.control_dependencies(kept):
                    return tf.constant(True)

            def combine() -> tf.Tensor:
                ends = self._combine(variables, [start.read_value() for start in starts])
                # Not before the reduction has succeeded: one that fails leaves a k-th run behind.
                with tf.control_dependencies(ends):
                    reset = pass_number.assign(0)
                with tf.control_dependencies([reset]):
                    return tf.constant(True)

            begun = tf.cond(
                tf.equal(pass_number.read_value(), 0), begin, lambda: tf.constant(False)
            )
            with tf.control_dependencies([begun]), tf.control_dependencies(_ops(apply())):
                # It is more than k where a k-th run has failed, and the program has gone on.
                is_last = add_to(pass_number, 1) >= self._passes
                return [tf.cond(is_last, combine, lambda: tf.constant(False))]


def _copy(variable: Variable) -> tf.Tensor:
    """The value now. What is read of a reference variable would change with it."""
    return tf.raw_ops.DeepCopy(x=variable.read_value())


def _start_of(variable: Variable) -> tf.Variable:
    name = variable.name.split(":")[0].replace("/", "_")
    return local_variable(
        lambda: tf.zeros(variable.shape, variable.dtype.base_dtype), f"start_{name}"
    )


def _ops(operation: Any) -> list[Any]:
    return [] if operation is None else [operation]  # eager code has no operations
