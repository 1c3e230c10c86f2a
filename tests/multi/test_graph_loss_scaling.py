# SPDX-License-Identifier: Apache-2.0
"""Dynamic loss scaling of TF 1 around a distributed optimizer, and within one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (2,)
IN_FULL = (3,)

v1 = tf.compat.v1
train = v1.train
RATE = 0.25


def scaled(optimizer, period=2):
    return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(
        optimizer, v1.mixed_precision.DynamicLossScale(8.0, increment_period=period)
    )


class Training:
    """The gradient of a pass is what is fed."""

    def __init__(self, make):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.weight = v1.get_variable("weight", initializer=np.zeros(3, np.float32))
            self.fed = v1.placeholder(tf.float32, [3])
            self.step = train.get_or_create_global_step()
            self.optimizer = make()
            loss = tf.reduce_sum(self.weight * self.fed)
            self.update = self.optimizer.minimize(loss, self.step)
            self.session = v1.Session()
            initialize = [v1.global_variables_initializer(), v1.local_variables_initializer()]
            self.session.run(initialize)

    def run(self, gradient):
        self.session.run(self.update, {self.fed: gradient})

    def state(self):
        with self.graph.as_default():
            scale = [v for v in v1.global_variables() if "loss_scale" in v.name]
            return self.session.run([self.weight, self.step, scale])


def gradient_of(rank, number):
    return np.random.default_rng([rank, number]).integers(-8, 8, 3).astype(np.float32)


def test_a_scale_around_several_passes(rank, size):
    """It follows the reduced sums. So it is equal on all ranks, and the same for all passes."""
    training = Training(
        lambda: scaled(
            hvd.DistributedOptimizer(
                train.GradientDescentOptimizer(RATE), backward_passes_per_step=2
            )
        )
    )
    expected = np.zeros(3, np.float32)
    for number in range(12):
        bad = number == 4  # of the third update, on one rank
        training.run([np.inf] * 3 if bad and rank == size - 1 else gradient_of(rank, number))
        if number % 2 and number != 5:
            sums = sum(gradient_of(r, n) for r in range(size) for n in (number - 1, number))
            expected -= RATE * sums / size
        np.testing.assert_allclose(training.state()[0], expected, rtol=1e-6)
    states = hvd.allgather_object([np.concatenate(training.state()[2], axis=None).tolist()])
    assert all(state == states[0] for state in states)
    # Doubled after two good updates, halved by the bad one, and doubled after two more.
    assert 16.0 in states[0][0]
    steps = hvd.allgather_object(int(training.state()[1]))
    assert steps == [11] * size  # of the bad update none, as without hvd_tf


def test_a_scale_within_adasum(rank, size):
    """A rank that overflows takes no step of its own. It counts it all the same."""
    training = Training(
        lambda: hvd.DistributedOptimizer(
            scaled(train.GradientDescentOptimizer(RATE)), op=hvd.Adasum
        )
    )
    for number in range(4):
        bad = number == 1 and rank == size - 1
        training.run([np.inf] * 3 if bad else gradient_of(rank, number))
        weights = hvd.allgather_object(training.state()[0].tolist())
        assert all(weight == weights[0] for weight in weights)
        assert hvd.allgather_object(int(training.state()[1])) == [number + 1] * size


def test_a_scale_around_adasum_is_refused():
    with pytest.raises(ValueError, match="Adasum within MixedPrecision.* other way round"):
        Training(
            lambda: scaled(
                hvd.DistributedOptimizer(train.GradientDescentOptimizer(RATE), op=hvd.Adasum)
            )
        )
