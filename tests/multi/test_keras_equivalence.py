# SPDX-License-Identifier: Apache-2.0
"""P ranks with a batch of b train a Keras model like one process with a batch of P*b."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from cases import in_full

from hvd_tf import keras as hvd_keras

RANKS = (2,)
IN_FULL = (4,)

keras = tf.keras
IS_KERAS_3 = not hasattr(keras.optimizers.Adam, "compute_gradients")
STEPS = 50
BATCH = 8  # per rank
VOCABULARY, WIDTH, FIELDS = 40, 4, 3
TOLERANCE = 1e-6  # of float32, relative to a weight's norm
MODULES = {"new": keras.optimizers}
if not IS_KERAS_3:
    MODULES["legacy"] = keras.optimizers.legacy
OPTIMIZERS = {
    "momentum": lambda module: module.SGD(0.05, momentum=0.9),
    "Adagrad": lambda module: module.Adagrad(0.1),
}


def batch(step, rank):
    """Ids (repeated within a batch and across ranks), numbers and labels of one rank."""
    generator = np.random.default_rng([step, rank])
    ids = np.minimum(generator.zipf(1.3, (BATCH, FIELDS)), VOCABULARY) - 1
    numbers = generator.standard_normal((BATCH, 5)).astype(np.float32)
    labels = (generator.random((BATCH, 1)) < 0.4).astype(np.float32)
    return ids.astype(np.int32), numbers, labels


def records(ranks):
    """The records of all steps, one after the other: in each the batches of these ranks."""
    parts = [batch(step, rank) for step in range(STEPS) for rank in ranks]
    return [np.concatenate(columns) for columns in zip(*parts)]


def make_model():
    """Wide and deep: embeddings, whose gradients are sparse, beside dense layers."""
    keras.utils.set_random_seed(3)
    layers = keras.layers
    ids, numbers = keras.Input([FIELDS], dtype="int32"), keras.Input([5])
    embedded = layers.Flatten()(layers.Embedding(VOCABULARY, WIDTH, name="embedding")(ids))
    hidden = layers.Dense(6, activation="tanh", name="hidden")(
        layers.Concatenate()([embedded, numbers])
    )
    wide = layers.Flatten()(layers.Embedding(VOCABULARY, 1, name="wide")(ids))
    joined = layers.Concatenate()([hidden, wide])
    return keras.Model([ids, numbers], layers.Dense(1, name="out")(joined))


def fitted(optimizer, records, batch_size):
    """Weights before and after STEPS steps of `fit`."""
    model = make_model()
    start = model.get_weights()
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    ids, numbers, labels = records
    model.fit([ids, numbers], labels, batch_size=batch_size, shuffle=False, verbose=0)
    return start, model.get_weights()


def looped(optimizer, records, batch_size, wrap=lambda tape: tape):
    """The same in a loop with a tape."""
    model = make_model()
    start = model.get_weights()
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train(ids, numbers, labels):
        with wrap(tf.GradientTape()) as tape:
            loss = loss_of(labels, model([ids, numbers], training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    for step in range(STEPS):
        at = slice(step * batch_size, (step + 1) * batch_size)
        train(*(column[at] for column in records))
    return start, model.get_weights()


def check(hvd, weights, start, alone):
    for number, (value, before, expected) in enumerate(zip(weights, start, alone)):
        assert np.linalg.norm(value - before) > 0.01, number  # it has moved
        difference = np.linalg.norm(value - expected) / np.linalg.norm(expected)
        assert difference <= TOLERANCE, f"{number}: {difference}"
    everyones = hvd.allgather_object([value.tobytes() for value in weights])
    assert all(other == everyones[0] for other in everyones)  # bit for bit


class DenseTape:
    """A tape whose gradients are dense, for some optimizers treat rows of a table differently."""

    def __init__(self, tape):
        self.tape = tape

    def __enter__(self):
        self.tape.__enter__()
        return self

    def __exit__(self, *of_exception):
        self.tape.__exit__(*of_exception)

    def gradient(self, loss, variables):
        return [tf.convert_to_tensor(each) for each in self.tape.gradient(loss, variables)]


def alone(size, make, dense):
    """The weights that one process finds with the batches of all ranks.

    Keras 3 applies rows of equal index one by one. Distributed, they are added up before.
    """
    if dense or IS_KERAS_3:
        return looped(make(), records(range(size)), size * BATCH, DenseTape)[1]
    return fitted(make(), records(range(size)), size * BATCH)[1]


def fits():
    """Every combination. By default each module, optimizer and way of the rows runs once."""
    few = {("new", "momentum", False), ("new", "Adagrad", True), ("legacy", "Adagrad", False)}
    for case in itertools.product(MODULES, OPTIMIZERS, [False, True]):
        yield pytest.param(*case, marks=[] if case in few else in_full)


@pytest.mark.parametrize(("module", "kind", "sparse_as_dense"), fits())
def test_fit(hvd, rank, size, module, kind, sparse_as_dense):
    def make():
        return OPTIMIZERS[kind](MODULES[module])

    optimizer = hvd_keras.DistributedOptimizer(make(), sparse_as_dense=sparse_as_dense)
    start, weights = fitted(optimizer, records([rank]), BATCH)
    check(hvd, weights, start, alone(size, make, sparse_as_dense))


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_the_tape(hvd, rank, size, sparse_as_dense):
    def make():
        return keras.optimizers.Adagrad(0.1)

    def wrap(tape):
        return hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense)

    start, weights = looped(make(), records([rank]), BATCH, wrap)
    check(hvd, weights, start, alone(size, make, sparse_as_dense))
