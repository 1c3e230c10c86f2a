# SPDX-License-Identifier: Apache-2.0
"""The gradients of the verbs against their definitions, in every mode of TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from cases import needs_kernels
from modes import MODES, run, values

import hvd_tf as hvd

RANKS = (1, 3)
IN_FULL = (2, "2x2")
GPU = (2,)


def gradient(mode, verb, x, upstream):
    """d sum(verb(x) * upstream) / dx. Both arrays are this rank's."""

    def call(x, upstream):
        if mode == "session":
            return tf.compat.v1.gradients(verb(x), x, upstream)[0]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = verb(x)
        return tape.gradient(y, x, upstream)

    return run(mode, call, x, upstream)


def total(seed, shape, size):
    return np.sum([values("float64", shape, r, seed) for r in range(size)], axis=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op, factor", [("Sum", 1.0), ("Average", None)])
def test_allreduce(mode, op, factor, rank, size):
    shape = (3, 2)
    got = gradient(
        mode,
        lambda x: hvd.allreduce(x, op=getattr(hvd, op), prescale_factor=0.5, postscale_factor=3.0),
        values("float64", shape, rank),
        values("float64", shape, rank, 1),
    )
    expected = total(1, shape, size) * 0.5 * 3.0 * (factor or 1 / size)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_allreduce_against_finite_differences(rank, size):
    # The gradient of the sum over all ranks of a loss that is different on each.
    upstream = values("float64", (4,), rank, 1)
    point = values("float64", (4,), rank)

    def loss(x):
        y = hvd.allreduce(x, op=hvd.Sum)
        return tf.reduce_sum(tf.sin(y) * upstream)

    variable = tf.Variable(point)
    with tf.GradientTape() as tape:
        value = loss(variable)
    got = tape.gradient(value, variable).numpy()
    step = 1e-6
    for r in range(size):
        for i in range(4):
            nudge = np.zeros(4)
            nudge[i] = step if r == rank else 0.0
            up = hvd.allreduce(loss(point + nudge), op=hvd.Sum)
            down = hvd.allreduce(loss(point - nudge), op=hvd.Sum)
            if r == rank:
                np.testing.assert_allclose(got[i], (up - down) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_grouped_allreduce(mode, rank, size):
    # The second output is used by nobody.
    got = gradient(
        mode,
        lambda x: hvd.grouped_allreduce([x, x * 2], op=hvd.Sum)[0],
        values("float64", (5,), rank),
        values("float64", (5,), rank, 1),
    )
    np.testing.assert_allclose(got, total(1, (5,), size), rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("grouped", [False, True])
def test_allgather(mode, grouped, rank, size):
    rows = [r + 1 for r in range(size)]
    shape = (sum(rows), 2)
    verb = (lambda x: hvd.grouped_allgather([x, x])[1]) if grouped else hvd.allgather
    got = gradient(
        mode, verb, values("float64", (rows[rank], 2), rank), values("float64", shape, rank, 1)
    )
    start = sum(rows[:rank])
    expected = (total(1, shape, size) / size)[start : start + rows[rank]]
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_allgather_in_a_graph_that_rank_0_has_built(rank, size):
    with tf.Graph().as_default() as built:
        x = tf.compat.v1.placeholder(tf.float64, [None], name="x")
        gathered = hvd.allgather(x)
        weights = tf.range(tf.size(gathered, tf.int64)) + 1
        loss = tf.reduce_sum(gathered * tf.cast(weights, tf.float64))
        tf.identity(tf.gradients(loss, x)[0], name="gradient")
    definition = built.as_graph_def().SerializeToString()
    definition = hvd.broadcast_object(definition, 0, name="graph")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(definition), name="")
        got = session.run("gradient:0", {"x:0": np.zeros(rank + 1)})
    start = sum(range(rank + 1))
    np.testing.assert_array_equal(got, np.arange(start, start + rank + 1) + 1.0)


@pytest.mark.parametrize("mode", MODES)
def test_broadcast(mode, rank, size):
    for root in range(size):
        got = gradient(
            mode,
            lambda x: hvd.broadcast(x, root),
            values("float64", (3,), rank),
            values("float64", (3,), rank, 1),
        )
        expected = total(1, (3,), size) / size if rank == root else np.zeros(3)
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_broadcast_of_an_infinite_gradient(mode, rank, size):
    got = gradient(mode, lambda x: hvd.broadcast(x, 0), np.float32([1.0]), np.float32([np.inf]))
    np.testing.assert_array_equal(got, [np.inf if rank == 0 else 0.0])


def test_a_gradient_of_slices_becomes_dense(rank, size):
    variable = tf.Variable(np.zeros((4, 2), np.float32))
    with tf.GradientTape() as tape:
        y = tf.gather(hvd.allreduce(variable, op=hvd.Sum), [1, 1])
    got = tape.gradient(y, variable)
    expected = np.zeros((4, 2))
    expected[1] = 2 * size
    np.testing.assert_array_equal(tf.convert_to_tensor(got), expected)


@needs_kernels
def test_a_gradient_through_slices(rank, size):
    # sum of all gathered rows: each rank's rows count once on every rank, on average.
    variable = tf.Variable(np.float32([[1.0, 2.0], [3.0, 4.0]]))
    with tf.GradientTape() as tape:
        rows = tf.IndexedSlices(tf.gather(variable, [0]), tf.constant([0]))
        loss = tf.reduce_sum(hvd.allreduce(rows, op=hvd.Sum).values)
    got = tf.convert_to_tensor(tape.gradient(loss, variable))
    np.testing.assert_array_equal(got, [[1.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize("average", [False, True])
def test_a_gradient_through_rows_of_several_ranks(average, rank, size):
    # Every rank has row 7 twice, and one of its own. The gradient of a row's sum goes to each.
    variable = tf.Variable(np.ones((3, 2), np.float32))
    with tf.GradientTape() as tape:
        rows = tf.IndexedSlices(tf.identity(variable), tf.constant([7, rank, 7]))
        op = hvd.Average if average else hvd.Sum
        reduced = hvd.allreduce(rows, op=op, name=f"rows {average}")
        weights = tf.reshape(tf.range(1.0, 2.0 * size + 3.0), [-1, 2])
        loss = (rank + 1) * tf.reduce_sum(reduced.values * weights)
    got = tape.gradient(loss, variable)
    weights = np.arange(1.0, 2.0 * size + 3.0).reshape(-1, 2)
    mean = np.mean([r + 1 for r in range(size)]) / (size if average else 1)
    np.testing.assert_allclose(got, weights[[size, rank, size]] * mean, rtol=1e-6)


@pytest.mark.parametrize("verb", ["alltoall", "reducescatter", "grouped_reducescatter"])
def test_tensors_of_which_nothing_is_known_in_a_graph(verb, size):
    """As of a custom op without a function for its shapes."""

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            if verb == "alltoall":
                y = hvd.alltoall(x, splits=[2] * size, name="unknown")[0]
            elif verb == "reducescatter":
                y = hvd.reducescatter(x, op=hvd.Average, name="unknown")
            else:
                (y,) = hvd.grouped_reducescatter([x], op=hvd.Average, name="unknown")
            loss = tf.reduce_sum(tf.raw_ops.MatMul(a=y, b=tf.ones([2, 3])))
        return tape.gradient(loss, x)

    np.testing.assert_allclose(gradient(tf.ones([2 * size, 2])), np.full([2 * size, 2], 3.0))


def test_allgather_of_more_dimensions_than_tensorflow_slices(rank, size):
    shape = (2 + rank, *[1] * 10, 2)
    variable = tf.Variable(tf.ones(shape))
    with tf.GradientTape() as tape:
        everyones = hvd.allgather(variable, name="many dimensions")
        weights = tf.range(float(everyones.shape[0]))
        loss = tf.reduce_sum(tf.reduce_sum(everyones, axis=list(range(1, 12))) * weights)
    before = sum(2 + r for r in range(rank))
    expected = np.zeros(shape) + np.arange(before, before + 2 + rank).reshape(-1, *[1] * 11)
    np.testing.assert_allclose(tape.gradient(loss, variable), expected)


NAMED = {
    "allreduce": lambda x, name: hvd.allreduce(x, op=hvd.Sum, name=name),
    "grouped_allreduce": lambda x, name: hvd.grouped_allreduce([x, x], op=hvd.Sum, name=name)[1],
    "allgather": lambda x, name: hvd.allgather(x, name=name),
    "grouped_allgather": lambda x, name: hvd.grouped_allgather([x, x], name=name)[1],
    "broadcast": lambda x, name: hvd.broadcast(x, 0, name=name),
    "alltoall": lambda x, name: hvd.alltoall(x, name=name),
    "reducescatter": lambda x, name: hvd.reducescatter(x, op=hvd.Sum, name=name),
    "grouped_reducescatter": lambda x, name: hvd.grouped_reducescatter(
        [x, x], op=hvd.Sum, name=name
    )[1],
    "slices": lambda x, name: (
        hvd.allreduce(tf.IndexedSlices(x, [2, 0, 1, 5, 3, 4]), name=name).values
    ),
}


# As where threads run them at once: their graphs make the nodes of gradients under equal names.
@pytest.mark.parametrize("verb", NAMED)
def test_gradients_go_by_the_names_of_their_calls(verb, rank, size):
    def gradients(names):
        @tf.function(autograph=False)
        def compute(x):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                ys = {name: NAMED[verb](x, f"{verb}/{name}") for name in sorted(names)}
            return {
                name: tape.gradient(ys[name], x, tf.fill(tf.shape(ys[name]), float(len(name))))
                for name in names
            }

        return tf.nest.map_structure(np.array, compute(tf.ones([6, 2])))

    names = ("a", "another")
    alone = {name: gradients([name])[name] for name in names}
    together = gradients(names if rank % 2 else names[::-1])
    for name in names:
        np.testing.assert_array_equal(together[name], alone[name])


def test_rank_ops_have_no_gradient():
    x = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        y = x * tf.cast(hvd.size_op(), tf.float32)
    assert tape.gradient(y, x).numpy() == hvd.size()
