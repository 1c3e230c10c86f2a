# SPDX-License-Identifier: Apache-2.0
"""Graphs that a program has saved with Horovod: checkpoints' `.meta` files have its operations."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

RANKS = (1, 2)
v1 = tf.compat.v1

FLOAT = {"T": tf.float32.as_datatype_enum}
SCALED = {"prescale_factor": 0.5, "postscale_factor": 3.0}


def node(graph_def, operation, inputs, **attributes):
    """Adds a node as Horovod 0.28.1 defines the operation."""
    made = graph_def.node.add(op=operation, name=f"saved/{operation}", input=inputs)
    for name, value in {"process_set_id": 0, **attributes}.items():
        attribute = made.attr[name]
        if name == "T":
            attribute.type = value
        elif isinstance(value, bool):
            attribute.b = value
        elif isinstance(value, int):
            attribute.i = value
        elif isinstance(value, float):
            attribute.f = value
        else:
            attribute.list.s.extend(value)


def imported(operation, tensors, outputs=1, **attributes):
    """Outputs of the operation, of these tensors of the default graph."""
    graph_def = v1.GraphDef()
    graph_def.versions.CopyFrom(tf.Graph().as_graph_def().versions)
    names = [f"input{i}:0" for i in range(len(tensors))]
    node(graph_def, operation, [name[:-2] for name in names], **attributes)
    for name, tensor in zip(names, tensors):
        stand_in = graph_def.node.add(op="Placeholder", name=name[:-2])
        stand_in.attr["dtype"].type = tensor.dtype.as_datatype_enum
    wanted = [f"saved/{operation}:{i}" for i in range(outputs)]
    return tf.graph_util.import_graph_def(graph_def, dict(zip(names, tensors)), wanted, name="")


def run(fetches, *before):
    with v1.Session() as session:
        for operation in before:
            session.run(operation)
        return session.run(fetches)


def values(rank):
    return np.arange(6, dtype=np.float32).reshape(6) + rank


@pytest.mark.parametrize("scoped", [False, True])
def test_allreduce_and_its_gradient(hvd, rank, size, scoped):
    with tf.Graph().as_default():
        x = tf.constant(values(rank))
        attributes = {"reduce_op": int(hvd.Sum), **SCALED, "ignore_name_scope": scoped, **FLOAT}
        (total,) = imported("HorovodAllreduce", [x], **attributes)
        got, gradient = run([total, tf.gradients(total, x)[0]])
    np.testing.assert_array_equal(got, 1.5 * sum(values(i) for i in range(size)))
    np.testing.assert_array_equal(gradient, np.full(6, 1.5 * size, np.float32))


def test_grouped_allreduce(hvd, rank, size):
    with tf.Graph().as_default():
        tensors = [tf.constant(values(rank)), tf.constant(values(rank)[:2])]
        attributes = {"reduce_op": int(hvd.Sum), "num_tensors": 2, **SCALED, **FLOAT}
        got = run(imported("HorovodGroupedAllreduce", tensors, 2, **attributes))
    total = 1.5 * sum(values(i) for i in range(size))
    np.testing.assert_array_equal(got[0], total)
    np.testing.assert_array_equal(got[1], total[:2])


def test_reducescatter_and_its_gradient(hvd, rank, size):
    with tf.Graph().as_default():
        x = tf.constant(values(rank))
        attributes = {"reduce_op": int(hvd.Sum), **SCALED, "ignore_name_scope": False, **FLOAT}
        (part,) = imported("HorovodReducescatter", [x], **attributes)
        got, gradient = run([part, tf.gradients(part, x)[0]])
    total = 1.5 * sum(values(i) for i in range(size))
    np.testing.assert_array_equal(got, np.array_split(total, size)[rank])
    np.testing.assert_array_equal(gradient, np.full(6, 1.5 * size, np.float32))


def test_what_only_moves_rows(rank, size):
    scope = {"ignore_name_scope": False, **FLOAT}
    with tf.Graph().as_default():
        x = tf.constant(values(rank))
        (gathered,) = imported("HorovodAllgather", [x], **scope)
        (sent,) = imported("HorovodBroadcast", [x], root_rank=size - 1, **scope)
        splits = tf.constant([6 // size] * size)
        exchanged, received = imported("HorovodAlltoall", [x, splits], 2, **scope)
        got = run([gathered, sent, exchanged, received])
    parts = [np.array_split(values(i), size)[rank] for i in range(size)]
    np.testing.assert_array_equal(got[0], np.concatenate([values(i) for i in range(size)]))
    np.testing.assert_array_equal(got[1], values(size - 1))
    np.testing.assert_array_equal(got[2], np.concatenate(parts))
    np.testing.assert_array_equal(got[3], [6 // size] * size)


@pytest.mark.parametrize(
    ("operation", "is_resource", "value", "more"),
    [
        ("HorovodBroadcastInplaceResource", True, "v/Read/ReadVariableOp:0", {}),
        ("HorovodBroadcastInplace", False, "v/read:0", FLOAT),
    ],
)
def test_variables_in_place(rank, size, operation, is_resource, value, more):
    with tf.Graph().as_default() as graph:
        v1.get_variable("v", initializer=values(rank), use_resource=is_resource)
        saved = graph.as_graph_def()
    attributes = {"num_variables": 1, "variable_names": [b"v"], "root_rank": size - 1}
    node(saved, operation, ["v"], **attributes, **more)
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(saved, name="")
        got = run(value, "v/Assign", f"saved/{operation}")
    np.testing.assert_array_equal(got, values(size - 1))
