# SPDX-License-Identifier: Apache-2.0
"""Several passes whose gradients are not of the same variables each time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf
from failing import failed_pass

import hvd_tf.keras as hvd_keras

RANKS = (2,)
IN_FULL = (3,)

IS_KERAS_3 = not hasattr(tf.keras.optimizers.Adam, "compute_gradients")


class Training:
    """`count` variables, and gradient descent with a rate of 1."""

    def __init__(self, hvd, passes, count):
        self.variables = [tf.Variable([0.0, 0.0], name=f"v{i}") for i in range(count)]
        self._counts = tf.keras.optimizers.SGD(1.0)
        self._counts.iterations  # noqa: B018  # it is made here
        self._helper = hvd.LocalGradientAggregationHelper(
            passes, lambda gradients, _: [hvd.allreduce(g) for g in gradients], False, False
        )

    def step(self, gradients, variables=None):
        variables = self.variables if variables is None else variables
        reduced = self._helper.compute_gradients(gradients, variables)

        def apply():
            for gradient, variable in zip(reduced, variables):
                if gradient is not None:
                    variable.assign_sub(gradient)

        self._helper.apply_gradients(apply, self._counts)

    def check(self, size, counts):
        """That each variable has had so many gradients of `gradients_of`."""
        mean = sum(range(1, size + 1)) / size
        expected = [[-count * mean * 10**i] * 2 for i, count in enumerate(counts)]
        np.testing.assert_allclose([v.numpy() for v in self.variables], expected, rtol=1e-6)


def gradients_of(rank, present, count):
    """Rank r's gradient of the i-th variable is (r + 1) * 10^i, or None."""
    return [tf.fill([2], float((rank + 1) * 10**i)) if i in present else None for i in range(count)]


def test_eager_passes_of_different_variables_add_up(hvd, rank, size):
    training = Training(hvd, 3, 3)
    for present in ((0, 1), (0, 2), (0,), (0,), (1,), (0, 1)):
        training.step(gradients_of(rank, present, 3))
    training.check(size, (5, 3, 1))


def test_a_step_must_end_with_the_variables_it_began_with(hvd):
    training = Training(hvd, 2, 2)
    training.step([tf.ones([2])], training.variables[:1])
    with pytest.raises(ValueError, match="=2: an earlier pass .* v0.* optimizer for each list"):
        training.step([tf.ones([2])], training.variables[1:])


def test_functions_of_different_variables_are_refused(hvd, rank, size):
    first, second = two_functions(Training(hvd, 2, 2), rank)
    first()
    with pytest.raises(tf.errors.InvalidArgumentError, match="=2: the passes of this step"):
        second()


def test_functions_that_take_turns_by_the_step(hvd, rank, size):
    training = Training(hvd, 2, 2)
    first, second = two_functions(training, rank)
    for step in (first, first, second, second, first, first):
        step()
    training.check(size, (4, 2))


def test_a_refused_pass_changes_no_sum(hvd, rank, size):
    training = Training(hvd, 2, 2)
    first, second = two_functions(training, rank)
    first()
    with pytest.raises(tf.errors.InvalidArgumentError, match="=2: the passes of this step"):
        second()
    for step in (first, second, second):
        step()
    training.check(size, (2, 2))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1, 1, 0, 1)])
def test_eager_passes_and_functions_add_up(hvd, rank, size, order):
    training = Training(hvd, 2, 2)

    def step():
        training.step(gradients_of(rank, (0, 1), 2))

    kinds = (step, tf.function(step))
    for kind in order:
        kinds[kind]()
    training.check(size, (len(order),) * 2)


def test_a_function_s_pass_is_known_to_an_eager_one(hvd, rank, size):
    training = Training(hvd, 2, 2)
    tf.function(lambda: training.step(gradients_of(rank, (0, 1), 2)))()
    training.step(gradients_of(rank, (0,), 2))
    training.check(size, (2, 1))


def test_functions_that_name_variables_in_another_order(hvd, rank, size):
    training = Training(hvd, 2, 2)

    def reversed_step():
        training.step(gradients_of(rank, (0, 1), 2)[::-1], training.variables[::-1])

    tf.function(lambda: training.step(gradients_of(rank, (0, 1), 2)))()
    tf.function(reversed_step)()
    training.check(size, (2, 2))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_a_pass_that_fails_delays_the_update(rank, size, average, eager):
    """The last rank's second pass fails, and so does the others' reduction. The third reduces."""
    weight = tf.Variable(0.0)
    optimizer = hvd_keras.DistributedOptimizer(
        tf.keras.optimizers.SGD(1.0),
        backward_passes_per_step=2,
        average_aggregated_gradients=average,
    )
    optimizer.build([weight])

    def step(gradient, fails):
        with tf.control_dependencies([tf.debugging.Assert(~fails, ["no data"])]):
            gradient = tf.identity(gradient)
        if hasattr(optimizer, "compute_gradients"):
            with tf.GradientTape() as tape:
                loss = weight * gradient
            optimizer.minimize(loss, [weight], tape=tape)
        else:  # of Keras 3
            optimizer.apply([gradient], [weight])

    step = step if eager else tf.function(step)

    def run(number, failing=False):
        step(tf.constant((rank + 1) * 10.0**number), tf.constant(failing))

    run(0)
    failed_pass(lambda: run(1, rank == size - 1), rank == size - 1)
    run(2)
    expected = 0.0
    for r in range(size):
        total, passes = ((r + 1) * 101, 2) if r == size - 1 else ((r + 1) * 111, 3)
        expected -= total / (passes if average else 1) / size
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("changes", [(True, False), (False, True), (True, True)])
def test_fit_of_other_variables_begins_with_the_first_pass(hvd, rank, size, changes, eager):
    """3 batches leave one pass over. It counts only in a fit of the same variables."""
    layers = [tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    model = tf.keras.Sequential([tf.keras.Input([1]), *layers])
    optimizer = hvd_keras.DistributedOptimizer(
        tf.keras.optimizers.SGD(0.125), backward_passes_per_step=2
    )
    optimizer.build(model.trainable_variables)  # of all: Keras 2 takes no more of them later
    w, sums = np.ones(2), np.zeros(2)
    passes = 0
    for number, trainable in enumerate(changes):
        layers[0].trainable = trainable
        model.compile(optimizer, lambda _, y: tf.reduce_mean(y), run_eagerly=eager)
        x = np.full([3, 1], rank + 1.0)
        model.fit(x, x, batch_size=1, verbose=0)
        if number > 0 and trainable != changes[0]:
            sums, passes = np.zeros(2), 0
        for _ in range(3):
            sums += (size + 1) / 2 * w[::-1] * [trainable, 1.0]
            passes += 1
            if passes % 2 == 0:
                w, sums = w - 0.125 * sums, np.zeros(2)
    np.testing.assert_allclose(np.ravel(model.get_weights()), w, rtol=1e-5)


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 begins its averages with the first weights")
def test_averages_of_weights_begin_with_the_first_update(rank, size):
    """use_ema. The moving average is that of one process, which has no passes."""
    weight, alone = tf.Variable([4.0]), tf.Variable([4.0])
    settings = {"use_ema": True, "ema_momentum": 0.5}
    plain = tf.keras.optimizers.SGD(0.1, **settings)
    optimizer = hvd_keras.DistributedOptimizer(
        tf.keras.optimizers.SGD(0.1, **settings), backward_passes_per_step=2
    )
    for _ in range(3):
        for scale in (1.0, 2.0):
            optimizer.apply_gradients([(scale * (rank + 1) * weight, weight)])
        plain.apply_gradients([(3.0 * (size + 1) / 2 * alone, alone)])
    np.testing.assert_allclose(weight, alone, rtol=1e-6)
    for one, variable in ((optimizer, weight), (plain, alone)):
        one.finalize_variable_values([variable])
    np.testing.assert_allclose(weight, alone, rtol=1e-6)


def two_functions(training, rank):
    """The first has a gradient of the first variable alone, the second of the second."""
    return [tf.function(lambda i=i: training.step(gradients_of(rank, (i,), 2))) for i in range(2)]


@pytest.mark.parametrize("passes", [2, 4])
def test_a_step_without_data_is_no_pass(rank, passes):
    """fit finds the end of a dataset of unknown length by a step, which counts for nothing."""
    keras = tf.keras
    rng = np.random.default_rng([3, rank])
    x, y = (rng.standard_normal((24, width)).astype(np.float32) for width in (3, 1))
    known = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    unknown = known.filter(lambda *_: True)

    def weights(dataset):
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        optimizer = hvd_keras.DistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=passes
        )
        model.compile(optimizer, "mse")
        model.fit(dataset, epochs=3, verbose=0)
        return model.get_weights()

    for got, expected in zip(weights(unknown), weights(known)):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


# An optimizer of Keras 2 cannot be copied in the other way.
@pytest.mark.parametrize("how", ["config", *(["deepcopy"] if IS_KERAS_3 else [])])
def test_copies_of_an_optimizer_add_up_their_own(rank, size, how):
    keras = tf.keras
    first = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    second = copy.deepcopy(first) if how == "deepcopy" else first.from_config(first.get_config())
    variables = [tf.Variable(0.0), tf.Variable(0.0)]
    if IS_KERAS_3:
        variables = [keras.Variable(0.0), keras.Variable(0.0)]
    for passes in (1, 2):
        for optimizer, variable in zip((first, second), variables):
            with tf.GradientTape() as tape:
                loss = tf.convert_to_tensor(variable) * float(rank + passes)
            if IS_KERAS_3:
                optimizer.apply(tape.gradient(loss, [variable.value]), [variable])
            else:
                optimizer.minimize(loss, [variable], tape=tape)
    mean = (size - 1) / 2
    for variable in variables:
        assert float(variable.numpy()) == -(2 * mean + 3)
