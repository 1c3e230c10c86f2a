# SPDX-License-Identifier: Apache-2.0
"""Small allreduces of a graph share a kernel. For the other ranks each is a call of its own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from modes import DEVICE, late, run

import hvd_tf as hvd

RANKS = (1, 3)
GPU = (2,)
IN_FULL = (2,)
v1 = tf.compat.v1


def total(size):
    return size * (size + 1) / 2  # of what the ranks multiply by


def nodes_of(fetches, feed=None, first=(), config=None):
    """The results, and the nodes of this library that have been executed."""
    with v1.Session(config=config) as session:
        session.run(first)
        metadata = v1.RunMetadata()
        options = v1.RunOptions(output_partition_graphs=True)
        results = session.run(fetches, feed, options=options, run_metadata=metadata)
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    return results, [node for node in nodes if node.op.startswith("Horovod")]


def bundles_of(nodes):
    """The calls of each bundle."""
    found = [node for node in nodes if node.op == "HorovodBundledAllreduce"]
    return sorted(sorted(name.decode() for name in node.attr["nodes"].list.s) for node in found)


def singles_of(nodes):
    return sorted(node.name for node in nodes if node.op == "HorovodAllreduce")


def several(bundles, size):
    """Bundles are made for several ranks alone."""
    return bundles if size > 1 else []


@pytest.mark.parametrize("mode", ["function", "session"])
def test_values(mode, rank, size):
    shapes = [(), (1,), (3, 2), (0,), (64,), (5, 5), (2, 0, 3)]
    dtypes = [tf.float32, tf.float64, tf.int32, tf.float16]

    def verbs(factor):
        results = {}
        for dtype in dtypes:
            for i, shape in enumerate(shapes):
                x = tf.cast(tf.fill(shape, float(i + 1)), dtype) * tf.cast(factor, dtype)
                name = f"{dtype.name}.{i}"
                results[name, "sum"] = hvd.allreduce(x, op=hvd.Sum, name=name)
                results[name, "max"] = hvd.allreduce(x, op=hvd.Max, name=f"{name}.max")
        return list(results.values())

    if mode == "function":
        with tf.device(DEVICE):
            step = tf.function(verbs)
            for _ in range(3):
                got = step(tf.constant(rank + 1.0))
    else:
        with tf.Graph().as_default():
            results = verbs(tf.constant(rank + 1.0))
            got, nodes = nodes_of(results)
        assert [len(bundle) for bundle in bundles_of(nodes)] == several([7] * 8, size)
        assert len(singles_of(nodes)) == (0 if size > 1 else 56)
    wanted = [
        np.full(shape, (i + 1) * factor, dtype.as_numpy_dtype)
        for dtype in dtypes
        for i, shape in enumerate(shapes)
        for factor in (total(size), size)
    ]
    for value, expected in zip(got, wanted):
        np.testing.assert_array_equal(value, expected)


def test_on_a_gpu_too(rank, size):
    """Where there is one: its kernel, whose calls wait for one mark of TensorFlow's stream."""

    def verbs(x):
        return [hvd.allreduce(x, op=hvd.Sum, name=f"gpu{i}") for i in range(5)]

    for mode in ("function", "session"):
        for value in run(mode, verbs, np.full(7, rank + 1.0, np.float32)):
            np.testing.assert_array_equal(value, np.full(7, total(size)))


def test_an_operation_is_the_target(rank, size):
    """A session runs operations by name, and fetches or feeds what is bundled."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder_with_default([rank + 1.0], [1])
        sums = [hvd.allreduce(x * i, op=hvd.Sum, name=f"w{i}") for i in range(1, 4)]
        session.run([one.op for one in sums])
        got = session.run([sums[0], sums[1].op, sums[2] + sums[1]], {sums[0]: [7.0]})
        np.testing.assert_allclose(got[0], [7.0])
        np.testing.assert_allclose(got[2], [5 * total(size)])


def test_what_is_bundled(rank, size):
    """Not what is large, or of unknown size, or what another collective is before or behind."""
    with tf.Graph().as_default():
        x = v1.placeholder_with_default(tf.ones([4]) * (rank + 1.0), [4])  # it is no constant
        unknown = v1.placeholder_with_default(tf.ones([4]), [None])
        free = [hvd.allreduce(x * i, op=hvd.Sum, name=f"free{i}") for i in range(3)]
        first = [hvd.allreduce(x * i, op=hvd.Sum, name=f"first{i}") for i in range(3)]
        after = [hvd.allreduce(y, op=hvd.Sum, name=f"after{i}") for i, y in enumerate(first)]
        rows = hvd.allgather(x, name="rows")
        others = {
            "large": hvd.allreduce(tf.ones([5000]), name="large"),
            "of_unknown": hvd.allreduce(unknown, name="of_unknown"),
            "behind_rows": hvd.allreduce(rows[0] * x, name="behind_rows"),
            "late": hvd.allreduce(late(x, 0.0), name="late"),
            "scaled": hvd.allreduce(x, name="scaled", prescale_factor=0.5),
            "average": hvd.allreduce(x, op=hvd.Average, name="average"),
        }
        with tf.control_dependencies([after[0]]):
            others["controlled"] = hvd.allreduce(x + 1.0, op=hvd.Sum, name="controlled")
        results, nodes = nodes_of([first, after, free, others])
    assert bundles_of(nodes) == several([["free0", "free1", "free2"]], size)
    singles = {*others, *(f"{kind}{i}" for kind in ("first", "after") for i in range(3))}
    assert singles <= set(singles_of(nodes))
    np.testing.assert_allclose(results[0], [np.full(4, i * total(size)) for i in range(3)])
    np.testing.assert_allclose(results[1], np.array(results[0]) * size)


def test_a_bundle_waits_for_one_input_of_data(rank, size):
    """A dataset may wait for other ranks before it gives a batch."""
    with tf.Graph().as_default():
        x = v1.placeholder_with_default(rank + 1.0, [])
        datasets = [tf.data.Dataset.from_tensors(float(i)) for i in range(2)]
        iterators = [v1.data.make_initializable_iterator(dataset) for dataset in datasets]
        tensors = [x, *(iterator.get_next() + x for iterator in iterators)]
        results = [
            [hvd.allreduce(y * f, op=hvd.Sum, name=f"{i}_{f}") for f in (1, 2)]
            for i, y in enumerate(tensors)
        ]
        results, nodes = nodes_of(results, first=[iterator.initializer for iterator in iterators])
    assert bundles_of(nodes) == several([[f"{i}_1", f"{i}_2"] for i in range(3)], size)
    np.testing.assert_allclose(
        results, [[f * (total(size) + more * size) for f in (1, 2)] for more in (0, 0, 1)]
    )


def test_a_bundle_has_a_bounded_size(rank, size):
    """Those that can start first go together."""
    with tf.Graph().as_default():
        x = tf.ones([3000]) * (rank + 1.0)  # 12000 bytes
        results = []
        for i in range(12):
            x = x + 1.0
            results.append(hvd.allreduce(x, op=hvd.Sum, name=f"w{i}"))
        got, nodes = nodes_of(results[::-1])
    wanted = [[f"w{i}" for i in range(first, last)] for first, last in ((0, 5), (5, 10), (10, 12))]
    assert bundles_of(nodes) == several(sorted(map(sorted, wanted)), size)
    for i, value in enumerate(got[::-1]):
        np.testing.assert_allclose(value, np.full(3000, total(size) + (i + 1) * size))


def switched(x, active, branch):
    """The tensor in one branch of a conditional, as TensorFlow makes it of tf.cond: dead or not."""
    return tf.raw_ops.Switch(data=x, pred=active)[branch]


@pytest.mark.parametrize("active", [True, False])
def test_what_runs_together_is_bundled(active, rank, size):
    """Behind a conditional all run. In a branch of it all do, or none."""
    with tf.Graph().as_default():
        x = v1.placeholder_with_default(rank + 1.0, [])
        chosen = v1.placeholder_with_default(active, [])
        ends = [switched(x, chosen, branch) * (branch + 2.0) for branch in (0, 1)]
        merged = tf.raw_ops.Merge(inputs=ends).output
        tensors = {
            "before": x,
            "inside": ends[active],
            "inside_too": switched(x + 1.0, chosen, int(active)),
            "behind": merged,
            "behind_too": tf.identity(merged) + 1.0,
            "of_both": x + merged,
        }
        sums = [
            [hvd.allreduce(y * i, op=hvd.Sum, name=f"{name}{i}") for i in (1, 2)]
            for name, y in tensors.items()
        ]
        results, nodes = nodes_of(sums)
    together = (("before",), ("inside", "inside_too"), ("behind", "behind_too", "of_both"))
    wanted = [sorted(f"{name}{i}" for name in names for i in (1, 2)) for names in together]
    assert bundles_of(nodes) == several(sorted(wanted), size)
    chosen_sum = (3 if active else 2) * total(size)
    bases = [total(size), chosen_sum, total(size) + size]
    bases += [chosen_sum, chosen_sum + size, chosen_sum + total(size)]
    np.testing.assert_allclose(results, [[base, 2 * base] for base in bases])


def test_a_branch_that_is_not_taken_has_no_call(rank, size):
    """All of its calls are dead in a step, on all ranks, and TensorFlow fetches what is not."""
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder_with_default(rank + 1.0, [])
        chosen = v1.placeholder(tf.bool, [])

        def sums(x, name):
            return [hvd.allreduce(x * i, op=hvd.Sum, name=f"{name}{i}") for i in (1.0, 2.0)]

        no, yes = (
            sums(switched(x, chosen, branch), name) for branch, name in enumerate(("no", "yes"))
        )
        ends = [tf.raw_ops.Merge(inputs=list(pair)).output for pair in zip(no, yes)]
        behind = sums(ends[0] + ends[1], "behind")
        for turn in range(4):
            got = session.run([ends, behind], {chosen: turn % 2 == 0})
            np.testing.assert_allclose(got[0], [total(size), 2 * total(size)])
            np.testing.assert_allclose(got[1], [3 * size * total(size), 6 * size * total(size)])


def test_conditionals_and_loops(rank, size):
    @tf.function
    def step(x, steps):
        for _ in tf.range(steps):
            a = hvd.allreduce(x, op=hvd.Sum, name="a")
            b = hvd.allreduce(2.0 * x, op=hvd.Sum, name="b")
            x = a + b
        if x[0] > 0:
            x = hvd.allreduce(x, op=hvd.Sum, name="c") + hvd.allreduce(x, op=hvd.Sum, name="d")
        return x

    got = step(tf.fill([2], rank + 1.0), tf.constant(3))
    np.testing.assert_allclose(got, np.full(2, total(size) * 3 * (3 * size) ** 2 * 2 * size))


def test_ranks_bundle_differently(rank, size):
    """Rank 0 has another order, knows fewer shapes, and has one call apart."""

    @tf.function
    def step(x, apart):
        names = range(6) if rank else reversed(range(6))
        results = {}
        for i in names:
            y = x * float(i)
            if rank == 0 and i == 2:
                y = tf.reshape(y, apart)
            results[i] = hvd.allreduce(y, op=hvd.Sum, name=f"w{i}")
        return [results[i] for i in range(6)]

    for _ in range(3):
        got = step(tf.fill([3], rank + 1.0), tf.constant([3]))
        np.testing.assert_allclose(got, [np.full(3, i * total(size)) for i in range(6)])


def test_a_rank_makes_the_calls_one_by_one(rank, size):
    """It comes to the last call when it has the result of one that depends on the first."""

    def step(x, call):
        a = call(x, "a")
        c = call(a * 2.0, "c")
        return a, call(x * 3.0, "b"), c

    def call(x, name):
        return hvd.allreduce(x, op=hvd.Sum, name=name, ignore_name_scope=True)

    x = tf.fill([2], rank + 1.0)
    run = step if rank == 0 else tf.function(step)
    for _ in range(2):
        a, b, c = run(x, call)
        np.testing.assert_allclose(a, [total(size)] * 2)
        np.testing.assert_allclose(b, 3.0 * a)
        np.testing.assert_allclose(c, 2.0 * size * a)


def test_operations_of_one_name(rank, size):
    @tf.function
    def step(x):
        return [
            hvd.allreduce(x * 10.0**i, op=hvd.Sum, name="w", ignore_name_scope=True)
            for i in range(4)
        ]

    np.testing.assert_allclose(
        step(tf.constant(rank + 1.0)), [total(size) * 10.0**i for i in range(4)]
    )


def test_an_error_names_the_tensor_and_its_node(rank, size):
    @tf.function
    def step(x, y):
        return hvd.allreduce(x, op=hvd.Sum, name="good"), hvd.allreduce(y, op=hvd.Sum, name="bad")

    x = tf.ones([2])
    if size > 1:
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"'bad'.*shape") as error:
            step(x, tf.ones([3]) if rank == 1 else tf.ones([4]))
        assert "{{node bad}}" in str(error.value)
    for got in step(x, x):
        np.testing.assert_allclose(got, [size, size])


def test_a_call_fails_that_others_wait_behind(rank, size):
    """The last rank makes the second call after the first: it never comes to it."""

    @tf.function
    def step(x):
        a = hvd.allreduce(x, op=hvd.Sum, name="a")
        if rank == size - 1:
            x = x + 0.0 * tf.reduce_sum(a)
        return a, hvd.allreduce(2.0 * x, op=hvd.Sum, name="b")

    for turn in range(3):
        if size > 1:
            with pytest.raises(tf.errors.OpError, match=r"'a'"):
                step(tf.ones([3 if rank == turn % size else 4]))
        first, second = step(tf.ones([2]))
        np.testing.assert_allclose([first, second], [[size] * 2, [2 * size] * 2])


def test_shapes_change(rank, size):
    """A placeholder of a known shape, and then functions of other shapes: requests are new."""

    @tf.function
    def step(x):
        return [hvd.allreduce(x * i, op=hvd.Sum, name=f"w{i}") for i in (1.0, 2.0)]

    for length in (3, 5, 3, 1):
        first, second = step(tf.fill([length], rank + 1.0))
        np.testing.assert_allclose(first, np.full(length, total(size)))
        np.testing.assert_allclose(second, np.full(length, 2 * total(size)))


def test_a_rank_joins(rank, size):
    @tf.function
    def step(x):
        return [hvd.allreduce(x * i, op=hvd.Sum, name=f"w{i}") for i in (1.0, 2.0, 3.0)]

    for turn in range(rank + 1):
        got = step(tf.ones([2]))
        active = size - turn
        np.testing.assert_allclose(got, [np.full(2, active * i) for i in (1.0, 2.0, 3.0)])
    assert hvd.join() == size - 1


def test_gradients_of_a_model(rank, size):
    """What an optimizer applies is what one process would have computed of all ranks' rows."""
    generator = np.random.default_rng(7)
    rows = generator.normal(size=(size, 8, 4)).astype(np.float32)

    def weights():
        return [tf.Variable(tf.ones([4, 4]) * 0.1 * (i + 1)) for i in range(6)] + [
            tf.Variable(tf.zeros([4])) for _ in range(6)
        ]

    def gradients(variables, x, wrap):
        with tf.GradientTape() as tape:
            for kernel, bias in zip(variables[:6], variables[6:]):
                x = tf.tanh(x @ kernel + bias)
            loss = tf.reduce_mean(x**2)
        return wrap(tape).gradient(loss, variables)

    variables = weights()
    got = tf.function(lambda x: gradients(variables, x, hvd.DistributedGradientTape))(rows[rank])
    wanted = gradients(weights(), tf.constant(rows.reshape(-1, 4)), lambda tape: tape)
    for value, expected in zip(got, wanted):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
