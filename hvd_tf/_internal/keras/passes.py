# SPDX-License-Identifier: Apache-2.0
"""Adds up the gradients of k passes, in eager code and in tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal import new_starts
from hvd_tf._internal.compat import (
    Variable,
    eager_mode,
    executing_eagerly_outside_functions,
    tf_variable,
    variable_key,
)
from hvd_tf._internal.gradients import Gradient, GradientReducer
from hvd_tf._internal.names import names_by_place


class Passes:
    """The sums of one optimizer, and the number of the current pass.

    All ranks must make passes together, because they reduce on each one's k-th pass only. The sums
    are no part of a checkpoint: a restored program begins with the first of k passes.
    """

    def __init__(self, reducer: GradientReducer, passes: int, average: bool) -> None:
        """passes is k, 2 or more. With average, the sum of a rank's k gradients is divided by k."""
        self.passes = passes
        self._reducer = reducer
        self._average = average
        self._number: Optional[tf.Variable] = None
        self._sums: dict[Any, tf.Variable] = {}
        # Which variables have had gradients in a step: their names by keys. 0 is a step's begin.
        self._sets: list[dict[Any, str]] = [{}]
        self._begun: Optional[tf.Variable] = None  # the place of this step's set in that list
        self._fitted: set[Any] = set()  # the keys of what the last `fit` has trained
        self.is_applying = False  # within a call of `apply`: this is a k-th pass
        new_starts.add_forgetful(self)

    @property
    def state(self) -> list[tf.Variable]:
        """What must be equal on all ranks: the number of the current pass."""
        return [self._pass_number()]

    def aggregate(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> list[Gradient]:
        """Make one pass. Returns the reduced sums if it is the k-th one, else the sums so far.

        A gradient may be None in some of the k passes. In a tf.function it is so in all or none.

        Raises:
          ValueError: a gradient is IndexedSlices, unless sparse_as_dense makes it dense; or this
            is a graph of TF 1, where nothing would run the updates of the sums; or an earlier one
            of the k passes had variables that the k-th one lacks.
          tf.errors.InvalidArgumentError: the same in a tf.function.
        """
        if not executing_eagerly_outside_functions():
            raise ValueError(
                f"backward_passes_per_step={self.passes} with an optimizer of Keras needs eager "
                "code or a tf.function: in a graph of TF 1 use one of tf.compat.v1.train"
            )
        result = self._reducer.densify(gradients)
        for gradient, variable in zip(result, variables):
            if isinstance(gradient, tf.IndexedSlices):
                raise ValueError(
                    f"the gradient of '{tf_variable(variable).name}' is IndexedSlices, which "
                    f"backward_passes_per_step={self.passes} cannot add up: pass "
                    "sparse_as_dense=True"
                )
        names = names_by_place(variables)
        number = self._pass_number()
        added = [i for i, gradient in enumerate(result) if gradient is not None]
        present, checks = self._variables_of_step(added, variables)
        with tf.control_dependencies(checks):  # a pass that is refused changes no sum
            for i in added:
                self._sum_of(result[i], variables[i]).assign_add(result[i])
            sums = [self._sums[variable_key(variables[i])] for i in present]
            # A step that finds no more data is no pass. Nor is one that fails in another way.
            with tf.control_dependencies([result[i] for i in added]):
                number.assign_add(1)

        def last() -> list[tf.Tensor]:
            totals = [total.read_value() for total in sums]
            if self._average:
                made = number.read_value()  # more than k where a k-th pass has failed
                totals = [total / tf.cast(made, total.dtype) for total in totals]
            summed = [variables[i] for i in present]
            reduced = self._reducer.reduce(totals, summed, [names[i] for i in present])
            # Not before the reduction has succeeded: one that fails leaves a k-th pass behind.
            with tf.control_dependencies(reduced):
                for total in sums:
                    total.assign(tf.zeros_like(total))
                number.assign(0)
            return [tf.identity(gradient) for gradient in reduced]

        def other() -> list[tf.Tensor]:
            return [total.read_value() for total in sums]

        if present:
            # It is more than k where the reduction of a k-th pass has failed.
            chosen = tf.cond(number >= self.passes, last, other)
            for i, gradient in zip(present, tf.nest.flatten(chosen)):
                result[i] = gradient
        return result

    def _variables_of_step(
        self, added: Sequence[int], variables: Sequence[Variable]
    ) -> tuple[Sequence[int], list[tf.Operation]]:
        """The places of variables that have had a gradient in any pass of this step so far.

        Those at the places `added` have one in this pass.

        In a tf.function also what fails if these are others than in an earlier pass.
        """
        keys = [variable_key(variable) for variable in variables]
        own = {keys[i]: str(tf_variable(variables[i]).name) for i in added}
        begun = self._begun_set()
        if tf.executing_eagerly():
            if int(self._pass_number()) > 0:
                own = {**self._sets[int(begun)], **own}
            here = set(keys)
            missing = [name for key, name in own.items() if key not in here]
            if missing:
                raise ValueError(
                    f"backward_passes_per_step={self.passes}: an earlier pass of this step had a "
                    f"gradient of {missing[0]}, and this one does not name that variable: pass the "
                    "same variables in every pass, or use an optimizer for each list of variables"
                )
            begun.assign(self._place_of(own))
            return [i for i, key in enumerate(keys) if key in own], []
        place = tf.constant(self._place_of(own), tf.int64)
        first = tf.equal(self._pass_number(), 0) | tf.equal(begun, 0)
        check = tf.debugging.assert_equal(
            tf.where(first, place, begun),
            place,
            f"backward_passes_per_step={self.passes}: the passes of this step have gradients of "
            "different variables, which a tf.function cannot add up: give all of them to each "
            "pass, or use an optimizer for each list of variables",
        )
        with tf.control_dependencies([check]):
            begun.assign(place)
        return added, [check]

    def _place_of(self, names: dict[Any, str]) -> int:
        if names not in self._sets:
            self._sets.append(names)
        return self._sets.index(names)

    def begin_fit(self, variables: Sequence[Variable]) -> None:
        """Discard a pass that is left over where the last `fit` has trained other variables.

        Every rank calls it.
        """
        if self._fitted and self._fitted != {variable_key(variable) for variable in variables}:
            self.reset()

    def end_fit(self, variables: Sequence[Variable]) -> None:
        """Tell which variables a `fit` has trained. None: it has not built them."""
        self._fitted = {variable_key(variable) for variable in variables} or self._fitted

    def reset(self) -> None:
        """Begin with the first of k passes, in eager code. Every rank does, or none."""
        self._pass_number().assign(0)
        for total in self._sums.values():
            total.assign(tf.zeros_like(total))

    def on_new_start(self) -> None:
        """Begin with the first of k passes, if there was one."""
        if self._sums:
            with eager_mode():
                self.reset()

    def apply(self, apply: Callable[[], Any], skip: Callable[[], Any]) -> Any:
        """Call `apply` after a k-th pass, else `skip`. A tf.function traces both.

        Neither may make variables. Returns a tensor, which is there when all is done.
        """

        def last() -> bool:
            self.is_applying = True
            try:
                apply()
            finally:
                self.is_applying = False
            return True

        def other() -> bool:
            skip()
            return False

        return tf.cond(tf.equal(self._pass_number(), 0), last, other)

    def _pass_number(self) -> tf.Variable:
        if self._number is None:
            with tf.init_scope():
                self._number = tf.Variable(0, trainable=False, dtype=tf.int64, name="pass_number")
        return self._number

    def _begun_set(self) -> tf.Variable:
        if self._begun is None:
            with tf.init_scope():
                self._begun = tf.Variable(0, trainable=False, dtype=tf.int64, name="pass_set")
        return self._begun

    def _sum_of(self, gradient: tf.Tensor, variable: Variable) -> tf.Variable:
        key = variable_key(variable)
        if key not in self._sums:
            with tf.init_scope():
                zeros = tf.zeros(tf_variable(variable).shape, gradient.dtype)
                self._sums[key] = tf.Variable(zeros, trainable=False, name="gradient_sum")
        return self._sums[key]
