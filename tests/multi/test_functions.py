# SPDX-License-Identifier: Apache-2.0
"""Broadcasting variables, and passing objects between ranks."""

from __future__ import annotations

import threading

import fake_gpu
import numpy as np
import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf._internal import meeting, objects
from hvd_tf._internal.meeting import everywhere

RANKS = (2,)
IN_FULL = (4, "2x2")

v1 = tf.compat.v1
DTYPES = "uint8 int8 uint16 int16 int32 int64 float16 bfloat16 float32 float64 bool".split()


class Unpicklable:
    def __init__(self, why="not for travelling"):
        self.why = why

    def __reduce__(self):
        raise RuntimeError(self.why)


def value_of(rank, dtype):
    numbers = np.arange(6).reshape(2, 3) + 10 * rank
    return (numbers % 2 == rank % 2) if dtype == "bool" else numbers


def initial(rank, dtype):
    return tf.cast(value_of(rank, dtype), dtype)


def assert_root_values(values, root):
    for value, dtype in zip(values, DTYPES):
        assert value.dtype == tf.as_dtype(dtype).as_numpy_dtype
        np.testing.assert_array_equal(value.astype(np.float64), value_of(root, dtype))


# ---- variables ---------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [False, True])
def test_eager_variables_of_all_dtypes(rank, size, inplace):
    variables = [tf.Variable(initial(rank, dtype), name="v") for dtype in DTYPES]
    root = size - 1
    assert hvd_tf.broadcast_variables(variables, root, inplace=inplace) is None
    assert_root_values([variable.numpy() for variable in variables], root)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("use_resource", [False, True])
def test_graph_variables_of_all_dtypes(rank, size, inplace, use_resource):
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(dtype, initializer=initial(rank, dtype), use_resource=use_resource)
            for dtype in DTYPES
        ]
        operation = hvd_tf.broadcast_variables(variables, 1, inplace=inplace)
        assert isinstance(operation, tf.Operation)
        session.run(v1.global_variables_initializer())
        session.run(operation)
        assert_root_values(session.run(variables), 1)


def test_global_variables(rank):
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("weights", initializer=float(rank))
        local = v1.get_variable(
            "local", initializer=float(rank), collections=[v1.GraphKeys.LOCAL_VARIABLES]
        )
        operation = hvd_tf.broadcast_global_variables(0)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(operation)
        assert session.run([weights, local]) == [0.0, float(rank)]
    with pytest.raises(RuntimeError, match=r"broadcast_variables\(variables, root_rank\)"):
        hvd_tf.broadcast_global_variables(0)


def test_variables_in_a_function(rank):
    variable = tf.Variable([float(rank)] * 3)

    @tf.function
    def start():
        hvd_tf.broadcast_variables([variable], 0)
        return variable + 1.0

    assert start().numpy().tolist() == [1.0, 1.0, 1.0]


def test_keras_variables(rank, size):
    model = tf.keras.Sequential([tf.keras.layers.Dense(3), tf.keras.layers.BatchNormalization()])
    model.build((None, 2))
    for variable in model.variables:
        variable.assign(tf.fill(variable.shape, float(rank)))
    hvd_tf.broadcast_variables(model.variables, size - 1)
    for variable in model.variables:
        np.testing.assert_array_equal(variable.numpy(), np.full(variable.shape, float(size - 1)))


def test_replicated_variables_where_functions_run_eagerly(rank):
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        variables = [tf.Variable(float(rank + i), name="replicated") for i in range(3)]
    tf.config.run_functions_eagerly(True)
    try:
        hvd_tf.broadcast_variables(variables, 1)
    finally:
        tf.config.run_functions_eagerly(False)
    assert [variable.numpy() for variable in variables] == [1.0, 2.0, 3.0]


def test_many_variables_at_once(rank):
    variables = [tf.Variable(tf.fill([i % 7, 3], float(rank * i)), name="w") for i in range(200)]
    hvd_tf.broadcast_variables([*variables, variables[3]], 1)  # one of them twice
    for i, variable in enumerate(variables):
        np.testing.assert_array_equal(variable.numpy(), np.full([i % 7, 3], float(i)))


@pytest.mark.parametrize("in_graph", [False, True])
def test_ranks_may_list_variables_in_different_orders(rank, size, in_graph):
    variables = [tf.Variable([float(rank * i)], name=f"ordered{i}") for i in range(5)]
    given = variables[rank % 5 :] + variables[: rank % 5]

    def broadcast():
        hvd_tf.broadcast_variables(given, size - 1, inplace=True)

    (tf.function(broadcast) if in_graph else broadcast)()
    values = [float(variable.numpy()[0]) for variable in variables]
    assert values == [float((size - 1) * i) for i in range(5)]


def test_names_that_differ_by_a_scope(rank, size):
    """Keras names an optimizer's variables with its scope, or without where it has loaded them."""
    names = ["d/kernel", "iter", "d/kernel/m", "d/bias/m", "e/kernel/m"]
    root = size - 1
    if rank != root:  # in another order too
        names = ["d/kernel", "Adam/e/kernel/m", "Adam/d/bias/m", "Adam/d/kernel/m", "Adam/iter"]
    variables = [tf.Variable([rank, name.count("k")], name=name) for name in names]
    hvd_tf.broadcast_variables(variables, root)
    assert [v.numpy().tolist() for v in variables] == [[root, name.count("k")] for name in names]


@pytest.mark.parametrize("others", [[], ["here", "gone#1"], ["here", "Adam/a/m", "Adam/b/m"]])
def test_variables_that_some_ranks_lack(hvd, rank, size, others):
    """An error on all ranks, and the job lives."""
    names = ["here", "a/m", "c/m", "m"] if rank == 0 else others
    variables = [tf.Variable([float(rank)], name=name) for name in names]
    with pytest.raises(ValueError, match="the variables differ .*rank 1: .*lacks (a/m, )?c/m"):
        hvd_tf.broadcast_variables(variables, 0)
    assert [float(v.numpy()[0]) for v in variables] == [float(rank)] * len(names)
    assert len(hvd.allgather_object(rank)) == size


def test_a_variable_without_a_value_is_named_on_every_rank(rank):
    with tf.Graph().as_default(), v1.Session() as session:
        full = v1.get_variable("full", initializer=float(rank), use_resource=True)
        empty = v1.get_variable("empty", initializer=float(rank), use_resource=True)
        operation = hvd_tf.broadcast_variables([full, empty], 0, inplace=True)
        session.run([full.initializer, *([empty.initializer] if rank != 1 else [])])
        # On GPUs each has a kernel, and the first to fail may be that of the other variable.
        kind = tf.errors.OpError if fake_gpu.IS_REAL else tf.errors.FailedPreconditionError
        with pytest.raises(kind, match="broadcast/empty.*no value"):
            session.run(operation)
        session.run(empty.initializer)
        session.run(operation)  # the job lives
        assert session.run([full, empty]) == [0.0, 0.0]


def test_nothing_to_broadcast():
    assert hvd_tf.broadcast_variables([], 0) is None


def test_what_is_no_variable_cannot_be_broadcast():
    with pytest.raises(ValueError, match="'object' is no variable, and cannot be broadcast: pass"):
        hvd_tf.broadcast_variables([tf.Variable(1.0), object()], 0)


def test_dtypes_that_cannot_be_broadcast():
    variables = [tf.Variable(1.0), tf.Variable("text", name="label")]
    with pytest.raises(ValueError, match="label:0' has dtype string, which cannot be broadcast"):
        hvd_tf.broadcast_variables(variables, 0)


def test_shapes_that_differ_are_named(rank):
    matching = tf.Variable([float(rank)], name="matching")
    different = tf.Variable(tf.zeros([2 + rank]), name="different")
    with pytest.raises(tf.errors.FailedPreconditionError, match="broadcast/different.*shape"):
        hvd_tf.broadcast_variables([matching, different], 0)
    hvd_tf.broadcast_variables([matching], 0)  # the job lives
    assert matching.numpy() == [0.0]


# ---- objects -----------------------------------------------------------------------------------

OBJECTS = [
    None,
    b"",
    {"step": 7, "names": ["a", "b"], "nested": (1.5, {2})},
    np.arange(5.0),
]


def assert_equal(got, want):
    if isinstance(want, np.ndarray):
        np.testing.assert_array_equal(got, want)
    else:
        assert got == want and type(got) is type(want)


@pytest.mark.parametrize("in_graph", [False, True])
def test_broadcast_object(rank, size, in_graph):
    def check():
        for root in (0, size - 1):
            for obj in OBJECTS:
                mine = obj if rank == root else ("of rank", rank)
                got = hvd_tf.broadcast_object(mine, root)
                assert_equal(got, obj)
                assert (got is mine) == (rank == root)

    if in_graph:
        with tf.Graph().as_default() as graph:
            graph.finalize()  # as MonitoredTrainingSession leaves it
            check()
    else:
        check()


def test_broadcast_object_fn(rank):
    broadcast = hvd_tf.broadcast_object_fn(root_rank=1, name="settings")
    assert broadcast({"rank": rank}) == {"rank": 1}


@pytest.mark.parametrize("in_graph", [False, True])
def test_allgather_object(rank, size, in_graph):
    def check():
        assert hvd_tf.allgather_object(("x" * rank, rank)) == [("x" * r, r) for r in range(size)]
        assert hvd_tf.allgather_object(None) == [None] * size

    if in_graph:
        with tf.Graph().as_default():
            check()
    else:
        check()


@pytest.mark.parametrize("shard_bytes", [1, 7, 64, 1000])
def test_objects_travel_in_shards(rank, size, monkeypatch, shard_bytes):
    monkeypatch.setattr(objects, "_SHARD_BYTES", shard_bytes)
    text = "".join(chr(97 + i % 26) for i in range(150))
    assert hvd_tf.broadcast_object(text if rank == 0 else None) == text
    assert hvd_tf.allgather_object(text[: 40 * rank]) == [text[: 40 * r] for r in range(size)]


def test_an_object_that_cannot_be_pickled_fails_on_every_rank(rank, size):
    with pytest.raises(ValueError, match="rank 1 could not pickle.*not for travelling"):
        hvd_tf.broadcast_object(Unpicklable() if rank == 1 else None, root_rank=1)
    with pytest.raises(ValueError, match="rank 1: RuntimeError: not for travelling"):
        hvd_tf.allgather_object(Unpicklable() if rank == 1 else rank)
    assert hvd_tf.allgather_object(rank) == list(range(size))  # and the next works


# As of a file whose name is no UTF-8.
NO_TEXT = b"there is no \xff.csv".decode(errors="surrogateescape")


def test_the_words_of_a_failure_may_be_no_text(rank, size):
    broken = Unpicklable(NO_TEXT)
    with pytest.raises(ValueError, match=r"rank 1 could not pickle.*there is no \\udcff.csv"):
        hvd_tf.broadcast_object(broken if rank == 1 else None, root_rank=1)
    with pytest.raises(ValueError, match=r"rank 1: RuntimeError: there is no \\udcff.csv"):
        hvd_tf.allgather_object(broken if rank == 1 else rank)

    def action():
        if rank == 1:
            raise OSError(NO_TEXT)

    words = "there is no " if rank == 1 else "input_fn failed on rank 1: OSError: there is no "
    with pytest.raises(OSError if rank == 1 else RuntimeError, match=words):
        everywhere(action, "input_fn")
    assert hvd_tf.allgather_object(rank) == list(range(size))


def test_objects_from_several_threads(rank, size):
    results = {}

    def exchange(name):
        for i in range(5):
            results[name, i] = hvd_tf.allgather_object((name, i, rank), name=name)

    threads = [threading.Thread(target=exchange, args=(name,)) for name in "abc"]
    order = threads if rank % 2 else threads[::-1]
    for thread in order:
        thread.start()
    for thread in order:
        thread.join()
    for (name, i), gathered in results.items():
        assert gathered == [(name, i, r) for r in range(size)]
    assert len(results) == 15


def test_objects_are_no_part_of_a_function():
    @tf.function
    def traced():
        return hvd_tf.broadcast_object(1)

    with pytest.raises(RuntimeError, match="cannot be a part of a tf.function"):
        traced()


def test_before_init(hvd):
    hvd.shutdown()
    try:
        for call in (
            lambda: hvd.broadcast_object(1),
            lambda: hvd.allgather_object(1),
            lambda: hvd.broadcast_variables([tf.Variable(1.0)], 0),
        ):
            with pytest.raises(ValueError, match="has not been initialized"):
                call()
    finally:
        hvd.init()


def test_a_ranks_own_error_comes_before_that_of_a_lost_peer(monkeypatch):
    def lost(*_, **__):
        raise tf.errors.UnknownError(None, None, "rank 1 has left")

    def action():
        raise KeyError("its own")

    monkeypatch.setattr(meeting, "allgather_object", lost)
    with pytest.raises(KeyError, match="its own"):
        everywhere(action, "input_fn")
