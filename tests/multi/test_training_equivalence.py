# SPDX-License-Identifier: Apache-2.0
"""P ranks with a batch of b train like one process with a batch of P*b."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

RANKS = (2,)
HOSTS = "2x2"
IN_FULL = (4,)

v1 = tf.compat.v1
STEPS = 50
BATCH = 8  # per rank
VOCABULARY, WIDTH, FIELDS = 40, 4, 3
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
OPTIMIZERS = {
    "Adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "GradientDescent": lambda: v1.train.GradientDescentOptimizer(0.1),
}


def batch(step, rank):
    """Ids (repeated within a batch and across ranks), numbers and labels of one rank."""
    generator = np.random.default_rng([step, rank])
    ids = np.minimum(generator.zipf(1.3, (BATCH, FIELDS)), VOCABULARY) - 1
    numbers = generator.standard_normal((BATCH, 5))
    return ids, numbers, (generator.random((BATCH, 1)) < 0.4).astype(np.float64)


def mean_loss(ids, numbers, labels, dtype):
    """Wide and deep: embeddings, whose gradients are sparse, beside dense layers."""
    generator = np.random.default_rng(3)

    def weights(name, *shape):
        return v1.get_variable(name, initializer=generator.normal(0, 0.3, shape).astype(dtype))

    embedded = tf.gather(weights("embedding", VOCABULARY, WIDTH), ids)
    features = tf.concat([tf.reshape(embedded, [-1, FIELDS * WIDTH]), numbers], axis=1)
    hidden = tf.tanh(features @ weights("kernel", FIELDS * WIDTH + 5, 6) + weights("bias", 6))
    wide = tf.reduce_sum(tf.gather(weights("wide", VOCABULARY, 1), ids), axis=1)
    logits = hidden @ weights("out", 6, 1) + wide
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def trained(optimizer, batch_of_step, dtype):
    """Returns the weights after STEPS steps, by name. Checks that all of them have moved."""
    with tf.Graph().as_default(), v1.Session() as session:
        fed = [
            v1.placeholder(tf.int64, [None, FIELDS]),
            v1.placeholder(dtype, [None, 5]),
            v1.placeholder(dtype, [None, 1]),
        ]
        update = optimizer().minimize(mean_loss(*fed, dtype))
        session.run(v1.global_variables_initializer())
        variables = {v.op.name: v for v in v1.trainable_variables()}
        start = session.run(variables)
        for step in range(STEPS):
            session.run(update, dict(zip(fed, batch_of_step(step))))
        weights = session.run(variables)
    for name, value in weights.items():
        assert np.linalg.norm(value - start[name]) > 0.01, name
    return weights


def whole_batch(step, size):
    return [np.concatenate(parts) for parts in zip(*(batch(step, rank) for rank in range(size)))]


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_ranks_train_like_one_process(rank, size, kind, dtype, sparse_as_dense):
    make_optimizer = OPTIMIZERS[kind]
    weights = trained(
        lambda: hvd_tf.DistributedOptimizer(make_optimizer(), sparse_as_dense=sparse_as_dense),
        lambda step: batch(step, rank),
        dtype,
    )
    alone = trained(make_optimizer, lambda step: whole_batch(step, size), dtype)
    for name, value in weights.items():
        difference = np.linalg.norm(value - alone[name]) / np.linalg.norm(alone[name])
        assert difference <= TOLERANCE[dtype], f"{name}: {difference}"
    everyones = hvd_tf.allgather_object({name: value.tobytes() for name, value in weights.items()})
    assert all(other == everyones[0] for other in everyones)  # bit for bit
