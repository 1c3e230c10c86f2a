# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of DistributedOptimizer fit the optimizer that it wraps, and the other way round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from linear_loss import ROWS, assert_same_weights, loss_of, make_variables, mean_loss, trained_alone

import hvd_tf

RANKS = (2,)
IN_FULL = (4, "2x2")

v1 = tf.compat.v1
train = v1.train
OPTIMIZERS = {
    "Adagrad": lambda: train.AdagradOptimizer(0.3),
    "Adam": lambda: train.AdamOptimizer(0.1),
    "Momentum": lambda: train.MomentumOptimizer(0.1, 0.9),
}


def continued(size, rank, make_optimizer, wrapped, path, restore, steps):
    """Train with or without the wrapper, from a checkpoint or the start, then save."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables()
        optimizer = make_optimizer()
        if wrapped:
            optimizer = hvd_tf.DistributedOptimizer(optimizer)
            update = optimizer.minimize(loss_of(rank, *variables))
        else:
            update = optimizer.minimize(mean_loss(size, *variables))
        saver = train.Saver()
        session.run(v1.global_variables_initializer())
        if restore:
            saver.restore(session, path)
        for _ in range(steps):
            session.run(update)
        saver.save(session, path, write_meta_graph=False)
        names = sorted(v.op.name for v in v1.global_variables())
        return session.run(variables), names


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("wrapped_first", [False, True])
def test_checkpoints_fit_with_and_without_the_wrapper(rank, size, tmp_path, kind, wrapped_first):
    make_optimizer = OPTIMIZERS[kind]
    path = str(tmp_path / "weights")
    common = (size, rank, make_optimizer)
    _, first_names = continued(*common, wrapped_first, path, restore=False, steps=3)
    weights, names = continued(*common, not wrapped_first, path, restore=True, steps=2)
    assert names == first_names
    assert_same_weights(weights, trained_alone(size, make_optimizer, steps=5))


@pytest.mark.parametrize("wrapped_first", [False, True])
def test_object_checkpoints_fit_too(rank, size, tmp_path: Path, wrapped_first):
    def train_some(wrapped, restore, steps):
        dense = tf.Variable(np.linspace(-1, 1, 4), name="dense")
        table = tf.Variable(np.ones((ROWS, 2)), name="table")
        optimizer = OPTIMIZERS["Adam"]()
        loss = mean_loss if not wrapped else loss_of
        who = rank if wrapped else size
        if wrapped:
            optimizer = hvd_tf.DistributedOptimizer(optimizer, name="object")
        saver = tf.train.Checkpoint(dense=dense, table=table, optimizer=optimizer)
        status = saver.restore(restore) if restore else None
        for _ in range(steps):
            optimizer.minimize(lambda: loss(who, dense, table), var_list=[dense, table])
        if status:
            status.assert_consumed()
        return saver.save(str(tmp_path / "object")), [dense.numpy(), table.numpy()]

    path, _ = train_some(wrapped_first, None, 3)
    _, weights = train_some(not wrapped_first, path, 2)
    assert_same_weights(weights, trained_alone(size, OPTIMIZERS["Adam"], steps=5))
