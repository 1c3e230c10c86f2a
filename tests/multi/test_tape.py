# SPDX-License-Identifier: Apache-2.0
"""DistributedGradientTape: its gradients are those of NumPy and of a single process."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

RANKS = (2,)
IN_FULL = (3,)

ROWS = 4  # of a rank's batch


def inputs(rank, columns=3, seed=0):
    rng = np.random.default_rng([seed, rank])
    return rng.standard_normal((ROWS, columns)).astype(np.float32)


def mean_gradient(ranks, **kwargs):
    """The mean over the ranks of d sum(x @ w) / dw, where w has one column."""
    return np.mean([inputs(rank, **kwargs).sum(axis=0) for rank in ranks], axis=0)[:, None]


def in_mode(mode, fn):
    """Runs it at once or in a tf.function. Returns its results as arrays."""
    results = fn() if mode == "eager" else tf.function(fn, autograph=False)()
    return tf.nest.map_structure(lambda tensor: tf.convert_to_tensor(tensor).numpy(), results)


@pytest.fixture(params=["eager", "function"])
def mode(request):
    return request.param


@pytest.mark.parametrize("wraps", ["before", "after"])
def test_the_mean_over_the_ranks(hvd, rank, size, mode, wraps):
    w = tf.Variable(tf.ones([3, 1]), name="w")

    def gradients():
        if wraps == "before":
            with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(inputs(rank) @ w)
        else:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(inputs(rank) @ w)
            tape = hvd.DistributedGradientTape(tape)
        assert isinstance(tape, tf.GradientTape)
        return tape.gradient(loss, [w])

    (got,) = in_mode(mode, gradients)
    np.testing.assert_allclose(got, mean_gradient(range(size)), rtol=1e-6)


def wrapped(hvd, partial, tape):
    wrap = hvd.PartialDistributedGradientTape if partial else hvd.DistributedGradientTape
    return wrap(tape)


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("asked", ["inside", "outside"])
def test_wrapped_while_it_records(hvd, rank, size, mode, partial, persistent, asked):
    """Whether the program asks for gradients before or after the recording has ended."""
    w = tf.Variable(tf.ones([3, 1]), name="w")

    def gradients():
        with tf.GradientTape(persistent) as tape:
            tape = wrapped(hvd, partial, tape)
            loss = tf.reduce_sum(inputs(rank) @ w)
            got = [tape.gradient(loss, w)] if asked == "inside" else []
        if asked == "outside":
            got = [tape.gradient(loss, w)]
        if persistent:
            got.append(tape.gradient(loss, w))
        else:
            with pytest.raises(RuntimeError, match="non-persistent"):
                tape.gradient(loss, w)
        return got

    for _ in range(3):  # a recording that is ended twice ends another one
        for got in in_mode(mode, gradients):
            np.testing.assert_allclose(got, mean_gradient(range(size)), rtol=1e-6)


def test_both_tapes_are_one_recording(hvd, rank, size, mode):
    w = tf.Variable(tf.ones([3, 1]), name="w")
    x = tf.constant(inputs(rank))

    def gradients():
        with tf.GradientTape(persistent=True) as own:
            tf.reduce_sum(x @ w)
            tape = hvd.DistributedGradientTape(own)
            tape.reset()
            with own.stop_recording():
                hidden = tf.reduce_sum(x @ w)
            loss = tf.reduce_sum(2.0 * x @ w)
        assert tape.watched_variables() == own.watched_variables() == (w,)
        assert tape.gradient(hidden, w) is None
        return tape.gradient(loss, w), own.gradient(loss, w)

    reduced, of_this_rank = in_mode(mode, gradients)
    np.testing.assert_allclose(reduced, 2 * mean_gradient(range(size)), rtol=1e-6)
    np.testing.assert_allclose(of_this_rank, 2 * mean_gradient([rank]), rtol=1e-6)


def test_any_structure_of_sources(hvd, rank, size, mode):
    w, b = tf.Variable(tf.ones([3, 1]), name="w"), tf.Variable(tf.zeros([1]), name="b")
    unused = tf.Variable(1.0, name="unused")
    x = tf.constant(inputs(rank))

    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x @ w + b)
        tape = hvd.DistributedGradientTape(tape)
        both = tape.gradient(loss, {"w": w, "rest": (b, [x])})
        zeros = tape.gradient(loss, [unused], None, tf.UnconnectedGradients.ZERO)
        zeros += tape.gradient(loss, [unused], None, "zero")
        zero = tape.gradient(loss, unused, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        assert tape.gradient(loss, [unused]) == [None]
        triple = tape.gradient([loss], w, output_gradients=[tf.constant(3.0)])
        return both, tape.gradient(loss, w), zeros, zero, triple

    both, single, zeros, zero, triple = in_mode(mode, gradients)
    expected = mean_gradient(range(size))
    np.testing.assert_allclose(both["w"], expected, rtol=1e-6)
    np.testing.assert_allclose(single, expected, rtol=1e-6)
    np.testing.assert_allclose(triple, 3 * expected, rtol=1e-6)
    np.testing.assert_allclose(both["rest"][0], [ROWS])
    np.testing.assert_allclose(both["rest"][1][0], np.ones((ROWS, 3)))
    assert [float(one) for one in [*zeros, zero]] == [0.0] * 3


def test_a_tape_class_of_the_programs_own(hvd, rank, size, mode):
    class Doubled(tf.GradientTape):
        def gradient(self, target, sources, output_gradients=None):
            return [2 * one for one in super().gradient(target, sources, output_gradients)]

    w = tf.Variable(tf.ones([3, 1]), name="w")

    def gradients():
        with Doubled() as tape:
            loss = tf.reduce_sum(tf.constant(inputs(rank)) @ w)
        return hvd.DistributedGradientTape(tape).gradient(loss, [w])

    [reduced] = in_mode(mode, gradients)
    np.testing.assert_allclose(reduced, 2 * mean_gradient(range(size)), rtol=1e-6)


def test_two_tapes_in_one_step(hvd, rank, size, mode):
    """As in adversarial training: equal names, other variables."""
    one, two = tf.Variable(tf.ones([3, 1]), name="w"), tf.Variable(tf.ones([5, 1]), name="w")

    def gradients():
        with tf.GradientTape() as first, tf.GradientTape() as second:
            first_loss = tf.reduce_sum(inputs(rank) @ one)
            second_loss = tf.reduce_sum(inputs(rank, columns=5, seed=1) @ two)
        first = hvd.DistributedGradientTape(first)
        second = hvd.DistributedGradientTape(second)
        return first.gradient(first_loss, [one]) + second.gradient(second_loss, [two])

    for _ in range(2):
        got = in_mode(mode, gradients)
        np.testing.assert_allclose(got[0], mean_gradient(range(size)), rtol=1e-6)
        expected = mean_gradient(range(size), columns=5, seed=1)
        np.testing.assert_allclose(got[1], expected, rtol=1e-6)


def test_a_table(hvd, rank, size, mode):
    table = tf.Variable(tf.ones([6, 2]), name="table")
    rows = [rank, 5, rank]

    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(tf.gather(table, rows))
        sparse = hvd.DistributedGradientTape(tape).gradient(loss, table)
        assert isinstance(sparse, tf.IndexedSlices)
        dense = hvd.DistributedGradientTape(tape, sparse_as_dense=True).gradient(loss, table)
        assert not isinstance(dense, tf.IndexedSlices)
        return sparse, dense

    expected = np.zeros((6, 2))
    for peer in range(size):
        np.add.at(expected, [peer, 5, peer], 1.0 / size)
    for got in in_mode(mode, gradients):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "of_mean", "tolerance"),
    [
        ({"op": "Sum"}, lambda size: size, 1e-6),
        ({"gradient_predivide_factor": 3.0}, lambda size: 1, 1e-6),
        ({"groups": 1}, lambda size: 1, 1e-6),
        ({"num_groups": 1}, lambda size: 1, 1e-6),
        ({"compression": "fp16"}, lambda size: 1, 2e-3),
        ({"device_dense": "/cpu:0"}, lambda size: 1, 1e-6),
    ],
)
@pytest.mark.filterwarnings("ignore:num_groups")
def test_arguments(hvd, rank, size, mode, arguments, of_mean, tolerance):
    arguments = dict(arguments)
    if "op" in arguments:
        arguments["op"] = getattr(hvd, arguments["op"])
    if "compression" in arguments:
        arguments["compression"] = getattr(hvd.Compression, arguments["compression"])
    weights = [tf.Variable(tf.ones([3, 1]), name=name) for name in "ab"]

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(inputs(rank) @ w) for w in weights])
        return hvd.DistributedGradientTape(tape, **arguments).gradient(loss, weights)

    expected = mean_gradient(range(size)) * of_mean(size)
    for got in in_mode(mode, gradients):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_ranks_outside_the_set_keep_their_gradients(hvd, rank, size, mode, others):
    w = tf.Variable(tf.ones([3, 1]), name="w")

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inputs(rank) @ w)
        return hvd.DistributedGradientTape(tape, process_set=others).gradient(loss, [w])

    (got,) = in_mode(mode, gradients)
    ranks = [0] if rank == 0 else range(1, size)
    np.testing.assert_allclose(got, mean_gradient(ranks), rtol=1e-6)


@pytest.mark.parametrize("scales", [True, False])
def test_local_sources(hvd, rank, size, mode, scales):
    shared, own = (tf.Variable(tf.ones([3, 1]), name=name) for name in ("shared", "own"))

    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(inputs(rank) @ (shared + own))
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scales)
        tape.register_local_source(own)
        local, others = tape.get_local_and_global_gradients(loss, [own, shared])
        assert [source is own for source, _ in local] == [True]
        assert [source is shared for source, _ in others] == [True]
        return [*tape.gradient(loss, [own, shared]), local[0][1], others[0][1]]

    got = in_mode(mode, gradients)
    mine = inputs(rank).sum(axis=0)[:, None] / (size if scales else 1)
    for at, expected in enumerate([mine, mean_gradient(range(size))] * 2):
        np.testing.assert_allclose(got[at], expected, rtol=1e-6)


def test_local_layers(hvd, rank, size, mode):
    shared, own = (tf.keras.layers.Dense(1, use_bias=False) for _ in range(2))
    x = tf.constant(inputs(rank))
    # Before its layers are built.
    tapes = [hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=own)]
    for layer in (shared, own):
        layer.build([None, 3])

    def gradients():
        tape = tapes.pop() if tapes else None
        if tape is None:
            plain = tf.GradientTape()
            tape = hvd.PartialDistributedGradientTape(plain, local_layers={own})
        with tape:
            loss = tf.reduce_sum(shared(x) + own(x))
        return tape.gradient(loss, shared.trainable_weights + own.trainable_weights)

    got = in_mode(mode, gradients)
    np.testing.assert_allclose(got[0], mean_gradient(range(size)), rtol=1e-5)
    np.testing.assert_allclose(got[1], inputs(rank).sum(axis=0)[:, None] / size, rtol=1e-5)


def test_names_that_differ_between_ranks(hvd, rank, size, mode):
    w = tf.Variable(tf.ones([3, 1]), name=f"w_of_rank_{rank}")

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inputs(rank) @ w)
        return hvd.DistributedGradientTape(tape).gradient(loss, [w], None, True)

    (got,) = in_mode(mode, gradients)
    np.testing.assert_allclose(got, mean_gradient(range(size)), rtol=1e-6)


def test_the_reduction_alone(hvd, rank, size):
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    assert tape.process_set is hvd.global_process_set
    mine = [tf.constant([float(rank)]), None]
    for arguments in ((), ([tf.Variable([0.0], name="a"), tf.Variable([0.0], name="b")],)):
        first, second = tape._allreduce_grads(mine, *arguments)
        assert first.numpy() == (size - 1) / 2 and second is None


def model_of(tf_module, seed):
    """A table and two dense layers, the same on every rank."""
    layers = tf_module.keras.layers
    tf_module.keras.utils.set_random_seed(seed)
    words = tf_module.keras.Input([2], dtype="int32")
    x = layers.Flatten()(layers.Embedding(10, 4, name="table")(words))
    x = layers.Dense(8, activation="tanh")(x)
    return tf_module.keras.Model(words, layers.Dense(1)(x))


def train(hvd, model, batches, distributed):
    """Plain gradient descent, by hand."""

    @tf.function
    def step(words, wanted):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(words, training=True) - wanted) ** 2)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables)):
            variable.assign_sub(0.05 * tf.convert_to_tensor(gradient))

    for words, wanted in batches:
        step(words, wanted)


def test_ranks_train_as_one_process_with_their_batches_together(hvd, rank, size):
    rng = np.random.default_rng(3)
    steps, rows = 50, 8
    words = rng.integers(0, 10, (steps, size * rows, 2)).astype(np.int32)
    wanted = rng.standard_normal((steps, size * rows, 1)).astype(np.float32)
    model, alone = model_of(tf, seed=rank), model_of(tf, seed=0)
    hvd.broadcast_variables(model.variables, root_rank=0)
    mine = slice(rank * rows, (rank + 1) * rows)
    train(hvd, model, zip(words[:, mine], wanted[:, mine]), distributed=True)
    train(hvd, alone, zip(words, wanted), distributed=False)
    for got, expected in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_xla_is_refused_with_the_remedy(hvd):
    variable = tf.Variable(2.0)

    @tf.function(jit_compile=True)
    def gradient():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            target = variable * variable
        return tape.gradient(target, variable)

    with pytest.raises(ValueError, match="XLA cannot compile a reduction .* jit_compile=False"):
        gradient()

    @tf.function(jit_compile=True)
    def local_gradient():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            target = variable * variable
        tape.register_local_source(variable)
        return tape.gradient(target, variable)

    assert local_gradient().numpy() == 4.0 / hvd.size()  # nothing is reduced


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda hvd: hvd.DistributedGradientTape(7), "must be a tf.GradientTape. Received: 7"),
        (
            lambda hvd: hvd.DistributedGradientTape(hvd.DistributedGradientTape(tf.GradientTape())),
            "wrap it once",
        ),
        (
            lambda hvd: hvd.DistributedGradientTape(
                tf.GradientTape(), op=hvd.Sum, gradient_predivide_factor=2.0
            ),
            "needs op=Average",
        ),
        (lambda hvd: hvd.DistributedGradientTape(tf.GradientTape(), groups=0), "groups must be"),
        (
            lambda hvd: hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=["x"]),
            "a Keras layer or a list of them. Received: 'x'",
        ),
    ],
)
def test_what_makes_no_sense(hvd, make, words):
    with pytest.raises(ValueError, match=words):
        make(hvd)
