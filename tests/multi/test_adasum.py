# SPDX-License-Identifier: Apache-2.0
"""op=Adasum: allreduces in every mode, tapes and the delta optimizer, against float64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from failing import failed_pass
from linear_loss import STEPS, loss_of, make_variables
from modes import FLOATS, MODES, assert_close, np_dtype, run, values

import hvd_tf as hvd

RANKS = (3,)
IN_FULL = (2, 4, 5, "2x2")

v1 = tf.compat.v1
train = v1.train


def pair(a, b):
    dot, aa, bb = np.vdot(a, b), np.vdot(a, a), np.vdot(b, b)
    of_a = 1.0 if aa == 0 else 1 - dot / (2 * aa)
    of_b = 1.0 if bb == 0 else 1 - dot / (2 * bb)
    return of_a * a + of_b * b


def adasum(parts):
    """Neighbours first, level by level, as the documentation says."""
    parts = [np.asarray(part).astype(np.float64) for part in parts]
    while len(parts) > 1:
        pairs = [pair(a, b) for a, b in zip(parts[::2], parts[1::2])]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def all_values(dtype, shape, size, seed=0):
    return [values(dtype, shape, rank, seed) for rank in range(size)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_allreduce(rank, size, mode, dtype):
    for seed, shape in enumerate([(), (3,), (7, 5), (0, 2), (5000,)]):
        parts = all_values(dtype, shape, size, seed)
        result = run(mode, lambda x: hvd.allreduce(x, op=hvd.Adasum, name="one"), parts[rank])
        # In float64 the order in which dot products are added up shows.
        assert_close(result, adasum(parts), dtype, terms=32 if dtype == "float64" else 2)


@pytest.mark.parametrize("mode", MODES)
def test_grouped_tensors_are_weighed_apart(rank, size, mode):
    shapes = [(4,), (3000,), (), (6, 2)]
    parts = [all_values("float32", shape, size, seed) for seed, shape in enumerate(shapes)]

    def group(*tensors):
        return hvd.grouped_allreduce(list(tensors), op=hvd.Adasum, name="group")

    def each(*tensors):
        return [hvd.allreduce(x, op=hvd.Adasum, name=f"x{i}") for i, x in enumerate(tensors)]

    mine = [of_ranks[rank] for of_ranks in parts]
    grouped, alone = run(mode, group, *mine), run(mode, each, *mine)
    for result, single, of_ranks in zip(grouped, alone, parts):
        assert_close(result, adasum(of_ranks), "float32")
        np.testing.assert_array_equal(result, single)


def test_a_group_of_several_dtypes(rank, size):
    parts = {dtype: all_values(dtype, (9,), size) for dtype in FLOATS}
    mine = [parts[dtype][rank] for dtype in FLOATS]
    results = hvd.grouped_allreduce([tf.constant(x) for x in mine], op=hvd.Adasum, name="dtypes")
    for dtype, result in zip(FLOATS, results):
        terms = 32 if dtype == "float64" else 2
        assert_close(result.numpy(), adasum(parts[dtype]), dtype, terms)


def test_scales_and_compression(rank, size):
    parts = all_values("float32", (50,), size)
    for compression, dtype in (
        (hvd.Compression.none, "float32"),
        (hvd.Compression.fp16, "float16"),
        (hvd.Compression.bf16, "bfloat16"),
    ):
        result = hvd.allreduce(
            parts[rank],
            op=hvd.Adasum,
            compression=compression,
            prescale_factor=0.5,
            postscale_factor=3.0,
            name=f"scaled {dtype}",
        ).numpy()
        sent = [(part * np.float32(0.5)).astype(np_dtype(dtype)) for part in parts]
        expected = 3.0 * adasum(sent)
        assert result.dtype == np.float32
        assert_close(result.astype(np_dtype(dtype)), expected, dtype)


def test_equal_opposite_and_zero(rank, size):
    common = values("float32", (40,), 77)
    np.testing.assert_allclose(hvd.allreduce(common, op=hvd.Adasum, name="eq"), common, rtol=1e-6)
    zeros = hvd.allreduce(np.zeros(5), op=hvd.Adasum, name="zeros")
    np.testing.assert_array_equal(zeros, np.zeros(5))
    alone = common if rank == size - 1 else np.zeros_like(common)
    np.testing.assert_allclose(hvd.allreduce(alone, op=hvd.Adasum, name="al"), common, rtol=1e-6)
    apart = np.eye(size)[rank]
    np.testing.assert_allclose(hvd.allreduce(apart, op=hvd.Adasum, name="apart"), np.ones(size))


def test_the_gradient_is_an_adasum_too(rank, size):
    weights = [values("float64", (6,), r, seed=4) for r in range(size)]
    source = tf.Variable(values("float64", (6,), rank))
    with tf.GradientTape() as tape:
        result = hvd.allreduce(source, op=hvd.Adasum, name="differentiated")
        loss = tf.reduce_sum(result * weights[rank])
    np.testing.assert_allclose(tape.gradient(loss, source), adasum(weights), rtol=1e-12)


def test_what_has_no_dot_product(rank):
    with pytest.raises(tf.errors.InvalidArgumentError, match="floating point, not int32.*use Sum"):
        hvd.allreduce(tf.constant([1, 2]), op=hvd.Adasum, name="integers")
    with pytest.raises(ValueError, match="Adasum"):
        hvd.reducescatter(tf.ones([8]), op=hvd.Adasum, name="rows")


def mixed(rank):
    """Slices before, between and behind tensors. No two have one dense shape."""

    def slices(rows, length):
        values_ = tf.constant(np.full((rank + 1, 2), rank + 1.0, np.float32))
        indices = tf.constant(np.arange(rank + 1) % rows, tf.int64)
        return tf.IndexedSlices(values_, indices, tf.constant([length, 2], tf.int64))

    return [
        tf.fill([3], float(rank)),
        slices(2, 10),
        tf.fill([2, 2], 2.0 * rank),
        slices(3, 20),
        tf.constant(float(rank), tf.float64),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_groups_of_tensors_and_slices(rank, size, mode):
    for op in (hvd.Sum, hvd.Average):
        divisor = size if op == hvd.Average else 1
        results = run(
            mode, lambda op=op: hvd.grouped_allreduce(mixed(rank), op=op, name=f"mixed{op}")
        )
        total = sum(range(size)) / divisor
        np.testing.assert_allclose(results[0], np.full(3, total), rtol=1e-6)
        np.testing.assert_allclose(results[2], np.full((2, 2), 2 * total), rtol=1e-6)
        np.testing.assert_allclose(results[4], total)
        for place, rows, length in ((1, 2, 10), (3, 3, 20)):
            got = results[place]
            if isinstance(got, tf.IndexedSlices):
                got = (got.values, got.indices, got.dense_shape)
            expected = np.zeros((rows, 2))
            for r in range(size):
                np.add.at(expected, np.arange(r + 1) % rows, (r + 1.0) / divisor)
            united = np.arange(min(rows, size))
            np.testing.assert_allclose(got[0], expected[united], rtol=1e-6)
            np.testing.assert_array_equal(got[1], united)
            np.testing.assert_array_equal(got[2], [length, 2])


def test_slices_are_refused(rank, size):
    words = "op=Adasum cannot reduce tf.IndexedSlices.* sparse_as_dense=True"
    slices = mixed(rank)[1]
    with pytest.raises(NotImplementedError, match=words):
        hvd.allreduce(slices, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match=words):
        hvd.grouped_allreduce(mixed(rank), op=hvd.Adasum)
    table = tf.Variable(np.ones((4, 2)))
    for as_dense in (False, True):
        tape = hvd.DistributedGradientTape(
            tf.GradientTape(), op=hvd.Adasum, sparse_as_dense=as_dense
        )
        with tape:
            loss = tf.reduce_sum(tf.gather(table, [rank, 3]))
        if not as_dense:
            with pytest.raises(NotImplementedError, match=words):
                tape.gradient(loss, [table])
            continue
        parts = [np.zeros((4, 2)) for _ in range(size)]
        for r, part in enumerate(parts):
            for row in (r, 3):
                part[row] += 1
        np.testing.assert_allclose(tape.gradient(loss, [table])[0], adasum(parts), rtol=1e-12)


def test_keras_optimizers_refuse_it():
    with pytest.raises(ValueError, match="op must be hvd.Average or hvd.Sum"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), op=hvd.Adasum)


def test_tape(rank, size):
    parts = [values("float64", (6,), r, seed=9) for r in range(size)]
    weights = tf.Variable(np.zeros(6))
    tape = hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum)
    with tape:
        loss = tf.reduce_sum(weights * parts[rank])
    np.testing.assert_allclose(tape.gradient(loss, [weights])[0], adasum(parts), rtol=1e-12)


# --- The delta optimizer

OPTIMIZERS = {
    "Adagrad": lambda: train.AdagradOptimizer(0.3),
    "Adam": lambda: train.AdamOptimizer(0.1),
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: train.MomentumOptimizer(0.1, 0.9),
}


class Alone:
    """All ranks of a delta optimizer in one process: a graph for each, combined in NumPy."""

    def __init__(self, size, make_optimizer, passes=1, as_dense=False):
        self._passes = passes
        self._sessions = []
        for rank in range(size):
            graph = tf.Graph()
            with graph.as_default():
                variables = make_variables()
                optimizer = make_optimizer()
                pairs = optimizer.compute_gradients(loss_of(rank, *variables))
                if as_dense:
                    pairs = [(tf.convert_to_tensor(g), v) for g, v in pairs]
                update = optimizer.apply_gradients(pairs)
                fed = [v1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
                assigns = [v1.assign(v, value) for v, value in zip(variables, fed)]
                session = v1.Session(graph=graph)
                session.run(v1.global_variables_initializer())
            self._sessions.append((session, variables, update, fed, assigns))
        self._starts = self.weights(0)

    def weights(self, rank):
        session, variables, *_ = self._sessions[rank]
        return session.run(variables)

    def train(self):
        """The steps of k runs. Returns the weights of all ranks after them."""
        for session, _, update, _, _ in self._sessions:
            for _ in range(self._passes):
                session.run(update)
        ends = [self.weights(rank) for rank in range(len(self._sessions))]
        self._starts = [
            start + adasum([end[i] - start for end in ends]) for i, start in enumerate(self._starts)
        ]
        for session, _, _, fed, assigns in self._sessions:
            session.run(assigns, dict(zip(fed, self._starts)))
        return self._starts


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("use_resource", [False, True])
def test_delta_optimizer_in_graphs(size, rank, kind, use_resource):
    alone = Alone(size, OPTIMIZERS[kind])
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("", use_resource=use_resource):
            variables = make_variables()
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](), op=hvd.Adasum)
        step = train.get_or_create_global_step()
        update = optimizer.minimize(loss_of(rank, *variables), global_step=step)
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [update]
        assert not v1.local_variables()
        session.run(v1.global_variables_initializer())
        for number in range(STEPS):
            session.run(update)
            assert session.run(step) == number + 1
            for got, want in zip(session.run(variables), alone.train()):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "GradientDescent"])
def test_delta_optimizer_in_eager_code(size, rank, kind, in_function):
    alone = Alone(size, OPTIMIZERS[kind])
    dense = tf.Variable(np.linspace(-1, 1, 4), name="dense")
    table = tf.Variable(np.ones((5, 2)), name="table")
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](), name=f"eager_delta{in_function}{kind}", op=hvd.Adasum
    )

    def step():
        optimizer.minimize(lambda: loss_of(rank, dense, table), var_list=[dense, table])

    run_step = tf.function(step) if in_function else step
    for _ in range(STEPS):
        run_step()
        for got, want in zip([dense.numpy(), table.numpy()], alone.train()):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("passes", [2, 3])
@pytest.mark.parametrize("as_dense", [False, True])
def test_delta_optimizer_of_several_passes(size, rank, passes, as_dense):
    alone = Alone(size, OPTIMIZERS["Momentum"], passes, as_dense)
    with tf.Graph().as_default(), v1.Session() as session:
        variables = make_variables()
        optimizer = hvd.DistributedOptimizer(
            OPTIMIZERS["Momentum"](),
            op=hvd.Adasum,
            backward_passes_per_step=passes,
            sparse_as_dense=as_dense,
        )
        step = train.get_or_create_global_step()
        update = optimizer.minimize(loss_of(rank, *variables), global_step=step)
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [update]
        names = {v.op.name for v in v1.global_variables()}
        assert names == {"dense", "table", "global_step", "dense/Momentum", "table/Momentum"}
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for cycle in range(3):
            for _ in range(passes):
                session.run(update)
            for got, want in zip(session.run(variables), alone.train()):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
            assert session.run(step) == (cycle + 1) * passes


def test_a_run_that_fails_delays_the_reduction(size, rank):
    parts = [[values("float64", (6,), r, seed=run) for run in range(3)] for r in range(size)]
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(6))
        fed, fails = v1.placeholder(tf.float64, [6]), v1.placeholder(tf.bool, [])
        with tf.control_dependencies([tf.debugging.Assert(~fails, ["no data"])]):
            gradient = tf.identity(fed)
        optimizer = hvd.DistributedOptimizer(
            train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=2
        )
        update = optimizer.minimize(tf.reduce_sum(weights * gradient))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])

        def run(number, failing=False):
            session.run(update, {fed: parts[rank][number], fails: failing})

        run(0)
        failed_pass(lambda: run(1, rank == size - 1), rank == size - 1)
        run(2)
        # The last rank has no second part.
        sums = [own[0] + own[2] + (own[1] if r < size - 1 else 0.0) for r, own in enumerate(parts)]
        np.testing.assert_allclose(session.run(weights), -adasum(sums), rtol=1e-12)


def test_local_variables_of_the_delta_optimizer(size, rank):
    parts = [values("float64", (6,), r, seed=11) for r in range(size)]
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=np.zeros(6))
        local = v1.get_variable("local", initializer=np.zeros(6))
        optimizer = hvd.DistributedOptimizer(train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
        optimizer.register_local_var(local)
        update = optimizer.minimize(tf.reduce_sum((weights + local) * parts[rank]))
        session.run(v1.global_variables_initializer())
        session.run(update)
        got = session.run([weights, local])
        np.testing.assert_allclose(got[0], -adasum(parts), rtol=1e-12)
        np.testing.assert_allclose(got[1], -parts[rank] / size, rtol=1e-12)
