# SPDX-License-Identifier: Apache-2.0
"""A loss that is linear in its variables, one for each rank, and what training it alone gives."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

STEPS = 4
ROWS = 5


def slopes_of(rank, seed=0):
    """What the loss of a rank depends on: d loss / d dense, and rows with weights."""
    generator = np.random.default_rng([seed, rank])
    rows = generator.integers(0, ROWS, 3)
    return generator.standard_normal(4), rows, generator.standard_normal((3, 2))


def loss_of(rank, dense, table):
    """Linear, so that its gradients are the slopes whatever the weights are."""
    slopes, rows, weights = slopes_of(rank)
    slopes, weights = tf.cast(slopes, dense.dtype), tf.cast(weights, table.dtype)
    return tf.reduce_sum(dense * slopes) + tf.reduce_sum(tf.gather(table, rows) * weights)


def mean_loss(size, dense, table):
    return tf.add_n([loss_of(rank, dense, table) for rank in range(size)]) / size


def make_variables(dtype=np.float64):
    dense = v1.get_variable("dense", initializer=np.linspace(-1, 1, 4).astype(dtype))
    table = v1.get_variable("table", initializer=np.ones((ROWS, 2), dtype))
    return dense, table


def trained_alone(size, make_optimizer, steps=STEPS, dtype=np.float64):
    """What a plain optimizer makes of the mean of all ranks' losses, in one process."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables(dtype)
        update = make_optimizer().minimize(mean_loss(size, *variables))
        session.run(v1.global_variables_initializer())
        for _ in range(steps):
            session.run(update)
        return session.run(variables)


def assert_same_weights(weights, expected):
    for got, want in zip(weights, expected):
        assert got.dtype == want.dtype
        tolerance = 1e-12 if want.dtype == np.float64 else 2e-6
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance / 10)
