# SPDX-License-Identifier: Apache-2.0
"""Ranks agree on batches while they train: in a tf.function, an Estimator and a v1 session."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (2,)

v1 = tf.compat.v1

BATCH = 2
RATE = 0.5


def records(total):
    """0 to total - 1, of a length that only reading tells."""
    return (
        tf.data.Dataset.range(2 * total).filter(lambda x: tf.equal(x % 2, 0)).map(lambda x: x // 2)
    )


def weight_after(steps, size, epochs=1, total=0):
    """NumPy's weight: every step moves it towards the mean of the ranks' batches' means."""
    weight, per_pass = 0.0, steps // epochs
    for step in range(steps):
        first = step % per_pass * BATCH
        means = []
        for rank in range(size):
            mine = np.arange(rank, total, size)[first : first + BATCH]
            means.append(np.mean(mine))
        weight -= RATE * (weight - np.mean(means))
    return weight


def test_in_a_function(rank, size):
    total = 20 * size + size - 1
    dataset = hvd.data.shard(records(total), BATCH, epochs=2).prefetch(2)
    weight = tf.Variable(0.0, dtype=tf.float64)

    @tf.function
    def train():
        steps = 0
        for batch in dataset:
            mean = tf.reduce_mean(tf.cast(batch, tf.float64))
            weight.assign_sub(RATE * hvd.allreduce(weight - mean, name="gradient"))
            steps += 1
        return steps

    steps = int(train())
    ranks = hvd.allgather_object(steps)
    assert ranks == [ranks[0]] * size
    # All end with the last rank, which has 10 batches.
    assert steps == 2 * ((total // size + BATCH - 1) // BATCH)
    want = weight_after(steps, size, 2, total)
    np.testing.assert_allclose(weight.numpy(), want, rtol=1e-12)


def model_fn(features, labels, mode):
    del labels
    weight = v1.get_variable("weight", dtype=tf.float64, initializer=np.float64(0.0))
    mean = tf.reduce_mean(tf.cast(features, tf.float64))
    loss = (weight - mean) ** 2 / 2
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(RATE))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.skipif(not hasattr(tf, "estimator"), reason="TensorFlow has no tf.estimator")
def test_in_an_estimator(tmp_path, size):
    total = 20 * size + size - 1
    estimator = tf.estimator.Estimator(model_fn, model_dir=str(tmp_path))

    def input_fn():
        return hvd.data.shard(records(total), BATCH).prefetch(2)

    hooks = [hvd.BroadcastGlobalVariablesHook(0)]
    # Ended by steps while the next batch is being agreed on, then by the end of the data.
    for max_steps in (3, 5, None):
        estimator.train(input_fn, hooks=hooks, max_steps=max_steps)
        step = int(estimator.get_variable_value("global_step"))
        assert step == (max_steps or 5 + (total // size + BATCH - 1) // BATCH)
        assert hvd.allgather_object(step) == [step] * size
    weights = hvd.allgather_object(float(estimator.get_variable_value("weight")))
    assert weights == [weights[0]] * size


def test_in_a_session(size):
    total = 6 * size
    with tf.Graph().as_default():
        dataset = hvd.data.shard(records(total), BATCH)
        batch = v1.data.make_initializable_iterator(dataset)
        taken = hvd.allreduce(tf.reduce_sum(batch.get_next()), op=hvd.Sum, name="sum")
        sums = []
        with v1.Session() as session:
            for _ in range(2):
                session.run(batch.initializer)
                with pytest.raises(tf.errors.OutOfRangeError):
                    while True:
                        sums.append(int(session.run(taken)))
    assert sums == np.arange(total).reshape(3, -1).sum(1).tolist() * 2


def test_known_lengths_in_a_graph(size, rank):
    with tf.Graph().as_default(), v1.Session() as session:
        dataset = hvd.data.shard(tf.data.Dataset.range(5 * size + 1))
        element = v1.data.make_one_shot_iterator(dataset).get_next()
        assert [session.run(element) for _ in range(5)] == list(range(rank, 5 * size, size))
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)


@pytest.mark.parametrize("form", ["one pass", "endless", "shuffled after", "equal steps after"])
def test_the_order_of_each_epoch_of_keras(form, rank, size):
    """The forms in docs/data.md. Each epoch iterates anew where it has no steps_per_epoch."""
    total, steps, seen = 12 * size, None, []
    if form == "one pass":
        dataset = hvd.data.shard(tf.data.Dataset.range(total), 3, shuffle_buffer=total)
    elif form == "endless":
        dataset = hvd.data.shard(records(total), 3, shuffle_buffer=total, epochs=None)
        steps = total // (3 * size)
    elif form == "shuffled after":
        dataset = hvd.data.shard(tf.data.Dataset.range(total)).shuffle(total).batch(3)
    else:
        dataset = hvd.data.shard(records(total), uneven="keep").shuffle(total).batch(3)
        dataset = hvd.data.equal_steps(dataset)

    class Noted(tf.keras.Model):
        def call(self, batch):
            return batch

        def train_step(self, batch):
            seen.extend(batch.numpy().tolist())
            return {"loss": tf.constant(0.0)}

    model = Noted()
    model.compile(run_eagerly=True)
    model.fit(dataset, epochs=3, steps_per_epoch=steps, verbose=0)
    epochs = np.reshape(seen, (3, 12)).tolist()
    assert all(sorted(epoch) == list(range(rank, total, size)) for epoch in epochs)
    orders = {str(epoch) for epoch in epochs}
    assert len(orders) == (1 if form == "one pass" else 3)


def test_an_error_in_one_ranks_data_reaches_the_others(rank, size):
    def read(x):
        if rank == 0 and x == 4 * size:
            raise ValueError("this record is broken")
        return x

    def checked(x):
        return tf.ensure_shape(tf.numpy_function(read, [x], tf.int64), [])

    def train():
        dataset = hvd.data.shard(records(20 * size)).map(checked)
        for batch in hvd.data.equal_steps(dataset):
            hvd.allreduce(batch, name="step")

    text = (
        "this record is broken"
        if rank == 0
        else "will not come from rank 0: its input failed after 4 batches"
    )
    with pytest.raises(tf.errors.OpError, match=text):
        train()
    assert hvd.allreduce(1, op=hvd.Sum, name="after").numpy() == size
