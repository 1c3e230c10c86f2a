# SPDX-License-Identifier: Apache-2.0
"""Local gradient aggregation: adds up the gradients of k passes, and reduces on the k-th only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

import tensorflow as tf

from hvd_tf._internal.compat import (
    Variable,
    executing_eagerly_outside_functions,
    graph_chain,
    is_resource_variable,
    v1,
    variable_key,
)
from hvd_tf._internal.counts import checked_count
from hvd_tf._internal.gradients import Gradient, GradientReducer

_OF_PASSES = "_hvd_of_passes"  # marks the variables that count passes, and their sums


class _Call(NamedTuple):
    """One call of `GradientAccumulator.reduce`."""

    variables: set[Any]  # their keys
    results: set[tf.Operation]
    is_last: tf.Tensor  # makes a pass of this call, and tells whether it is the k-th
    pass_number: tf.Variable  # 0 after a k-th pass


class GradientAccumulator:
    """For graphs of TF 1: one session run is one pass.

    The sums and the pass number are local variables: `tf.compat.v1.local_variables_initializer`
    resets them (sessions made by `MonitoredTrainingSession` and Estimator run it), checkpoints
    do not hold them, and they are not broadcast. All ranks must start them together, because the
    collectives run on a rank's k-th pass only.
    """

    def __init__(self, reducer: GradientReducer, passes: int, average: bool) -> None:
        """passes is k, 1 or more. With average, the sum of a rank's k gradients is divided by k."""
        check_passes(passes)
        self.passes = passes
        self._reducer = reducer
        self._average = average
        self._calls: WeakKeyDictionary[tf.Graph, list[_Call]] = WeakKeyDictionary()  # by outermost

    def reduce(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> list[Gradient]:
        """Like `GradientReducer.reduce`, but of the sums over k passes.

        Until the k-th pass the results are this rank's sums so far. They must not be applied.
        Raises ValueError for IndexedSlices, unless sparse_as_dense makes them dense.
        """
        if self.passes == 1:
            return self._reducer.reduce(gradients, variables)
        check_passes(self.passes)
        gradients = self._reducer.densify(gradients)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        for i in present:
            if isinstance(gradients[i], tf.IndexedSlices):
                raise ValueError(
                    f"the gradient of '{variables[i].name}' is IndexedSlices, which "
                    f"backward_passes_per_step={self.passes} cannot add up: pass "
                    "sparse_as_dense=True"
                )
        if present:
            reduced = self._accumulate(
                [gradients[i] for i in present], [variables[i] for i in present]
            )
            for i, gradient in zip(present, reduced):
                gradients[i] = gradient
        return gradients

    def _accumulate(self, gradients: list[tf.Tensor], variables: list[Variable]) -> list[tf.Tensor]:
        with v1.name_scope("gradient_accumulation"):
            sums = [_zeros(gradient, variable) for gradient, variable in zip(gradients, variables)]
            pass_number = local_variable(lambda: tf.zeros([], tf.int64), "pass_number")
            # The value is read once, here. What assign_add returns is read where it is used, which
            # may be after the reset.
            added = [add_to(total, gradient) for total, gradient in zip(sums, gradients)]
            with tf.control_dependencies(added):
                number = add_to(pass_number, 1)
            # It is more than k where a k-th pass has failed, and the program has gone on.
            is_last = number >= self.passes

            def reduce_and_reset() -> list[tf.Tensor]:
                totals = added
                if self._average:
                    totals = [total / tf.cast(number, total.dtype) for total in added]
                reduced = self._reducer.reduce(totals, variables)
                with tf.control_dependencies(reduced):
                    resets = [total.assign(tf.zeros_like(total)) for total in sums]
                    resets.append(pass_number.assign(0))
                with tf.control_dependencies(resets):
                    return [tf.identity(gradient) for gradient in reduced]

            results = tf.cond(is_last, reduce_and_reset, lambda: [tf.identity(a) for a in added])
        reduced = list(results) if isinstance(results, (list, tuple)) else [results]
        keys = {variable_key(variable) for variable in variables}
        calls = self._calls.setdefault(_outermost_graph(), [])
        calls.append(_Call(keys, {result.op for result in reduced}, is_last, pass_number))
        return reduced

    def apply(
        self,
        apply_gradients: Callable[[], Any],
        pairs: Iterable[tuple[Gradient, Variable]],
        global_step: Optional[Variable] = None,
        name: Optional[str] = None,
    ) -> tf.Operation:
        """Run `apply_gradients`, which returns an operation, on the k-th pass of `pairs` only.

        That is a pass of the call of `reduce` that their gradients are made from. Of gradients that
        are made from none, such as fed ones, it is the last pass that the last call for any of
        their variables has made.

        It adds 1 to `global_step`, and the other passes do nothing else: a step is a pass, so that
        hooks and `max_steps` end a training at the same pass as with Horovod.
        """
        present = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        is_last = self._is_last_of(present)
        if is_last is None:  # the gradients are the caller's own, already complete
            return apply_gradients()
        check_assignable(variable for _, variable in present)

        def applied() -> tf.Tensor:
            with tf.control_dependencies([apply_gradients()]):
                return tf.constant(True)

        def counted() -> tf.Tensor:
            counts = [] if global_step is None else [v1.assign_add(global_step, 1).op]
            with tf.control_dependencies(counts):
                return tf.constant(False)

        train_ops = v1.get_collection_ref(v1.GraphKeys.TRAIN_OP)
        earlier = list(train_ops)
        update = tf.group(tf.cond(is_last, applied, counted), name=name)
        train_ops[:] = [*earlier, update]  # without the operation inside the branch
        return update

    def _is_last_of(self, pairs: Sequence[tuple[Gradient, Variable]]) -> Optional[tf.Tensor]:
        calls = self._calls.get(_outermost_graph(), [])
        results = {result: call for call in calls for result in call.results}
        gradients = [gradient for gradient, _ in pairs]
        made_from = _nearest_of(results, gradients)
        if made_from is not None:
            return results[made_from].is_last
        keys = {variable_key(variable) for _, variable in pairs}
        call = next((call for call in reversed(calls) if call.variables & keys), None)
        if call is None:
            return None
        parts = tf.nest.flatten(gradients, expand_composites=True)
        with tf.control_dependencies([part for part in parts if tf.is_tensor(part)]):
            return tf.equal(call.pass_number.read_value(), 0)


def _nearest_of(
    wanted: Container[tf.Operation], gradients: Sequence[Gradient]
) -> Optional[tf.Operation]:
    """The operation that the fewest steps lead back to from the gradients. None: no step does."""
    left = deque(tf.nest.flatten(gradients, expand_composites=True))
    seen = set()
    while left:
        operation = getattr(left.popleft(), "op", None)  # an array of NumPy has none
        if operation is None or operation in seen:
            continue
        if operation in wanted:
            return operation
        seen.add(operation)
        # What a branch uses of the graph around it has no inputs there.
        captures = getattr(operation.graph, "captures", ())
        left += operation.inputs or [outer for outer, own in captures if own.op is operation]
    return None


def _outermost_graph() -> tf.Graph:
    *_, outermost = graph_chain()
    return outermost


def check_passes(passes: int) -> None:
    """Raises ValueError for less than 1 pass, and for several in an eager program."""
    checked_count("backward_passes_per_step", passes)
    if passes > 1 and executing_eagerly_outside_functions():
        raise ValueError(
            f"backward_passes_per_step={passes} with an optimizer of tf.compat.v1.train "
            "needs a graph (Estimator, MonitoredTrainingSession or `with tf.Graph()"
            ".as_default()`): in eager code add up the gradients and apply them yourself"
        )


def check_assignable(variables: Iterable[Variable]) -> None:
    """Raises ValueError for a reference variable that a branch of tf.cond could not assign to."""
    if not v1.control_flow_v2_enabled():
        return
    for variable in variables:
        if not is_resource_variable(variable):
            raise ValueError(
                f"'{variable.name}' is a reference variable, which backward_passes_per_step > 1 "
                "cannot change in the branches of TF 2: call "
                "tf.compat.v1.disable_control_flow_v2() first, or make it with use_resource=True"
            )


def add_to(variable: tf.Variable, delta: Any) -> tf.Tensor:
    """Add `delta`, and return the value that this makes."""
    with tf.control_dependencies([variable.assign_add(delta, read_value=False)]):
        return variable.read_value()


def local_variable(initial_value: Callable[[], tf.Tensor], name: str) -> tf.Variable:
    """One that `tf.compat.v1.local_variables_initializer` resets. Checkpoints do not have it.

    It is made outside of the loop or function that is being built.
    """
    with tf.init_scope():
        variable = v1.Variable(
            initial_value,
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
            name=name,
        )
    setattr(variable, _OF_PASSES, True)
    return variable


def first_pass(graph: tf.Graph) -> tf.Operation:
    """An operation after which all optimizers of the graph begin with the first of k passes."""
    local = graph.get_collection(v1.GraphKeys.LOCAL_VARIABLES)
    with graph.as_default():
        return v1.variables_initializer([one for one in local if hasattr(one, _OF_PASSES)])


def _zeros(gradient: tf.Tensor, variable: Variable) -> tf.Variable:
    name = variable.name.split(":")[0].replace("/", "_")
    return local_variable(lambda: tf.zeros(variable.shape, gradient.dtype), f"sum_{name}")
