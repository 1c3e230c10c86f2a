# SPDX-License-Identifier: Apache-2.0
"""A GPU that is made up, and HVD_GPU_LANE=0 on one rank: no rank has a lane.

Variables on the GPU are broadcast, and stay there.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf._internal.features import has_gpu_lane

RANKS = ()
GPU = (2,)
OWN_INIT = True
ALONE = True  # kernels for GPUs stay, once they are there

v1 = tf.compat.v1
GPU_0 = "/device:GPU:0"


@pytest.fixture(scope="module", autouse=True)
def hvd():
    with pytest.MonkeyPatch.context() as patch:
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            patch.setenv("HVD_GPU_LANE", "0")
        hvd_tf.init()
        yield hvd_tf
        hvd_tf.shutdown()


def test_all_ranks_have_a_lane_or_none():
    assert not has_gpu_lane()


def device_of(thing):
    return thing.device.rpartition("/task:0")[2]


def variables_of(rank, dtypes=(tf.float32, tf.float32, tf.float64)):
    made = []
    for i, dtype in enumerate(dtypes):
        with tf.device("CPU:0"):
            value = tf.constant(np.full([i + 2], rank * 10 + i), dtype)
        with tf.device("GPU:0"):
            made.append(tf.Variable(value, name=f"v{i}"))
    return made


def check(variables, root):
    for i, variable in enumerate(variables):
        assert device_of(variable) == GPU_0
        np.testing.assert_array_equal(variable.numpy(), np.full([i + 2], root * 10 + i))


@pytest.mark.parametrize("count", [1, 3])
def test_broadcast_in_place(rank, count):
    variables = variables_of(rank)[:count]
    values = hvd_tf.broadcast_(variables, 1, name=f"of {count}")
    check(variables, 1)
    for i, value in enumerate(values):
        np.testing.assert_array_equal(value, np.full([i + 2], 10 + i))


def test_broadcast_in_place_in_a_function(rank):
    variables = variables_of(rank)

    @tf.function(autograph=False)
    def step():
        return hvd_tf.broadcast_(variables, 0, name="in a function")

    for _ in range(2):
        for i, value in enumerate(step()):
            np.testing.assert_array_equal(value, np.full([i + 2], i))
    check(variables, 0)


@pytest.mark.parametrize("inplace", [False, True])
def test_broadcast_variables(rank, inplace):
    variables = variables_of(rank)
    hvd_tf.broadcast_variables(variables, 1, inplace=inplace)
    check(variables, 1)


@pytest.mark.parametrize("inplace", [False, True])
def test_broadcast_variables_in_a_function(rank, inplace):
    variables = variables_of(rank)

    @tf.function(autograph=False)
    def step():
        hvd_tf.broadcast_variables(variables, 1, inplace=inplace)

    step()
    check(variables, 1)


def test_variables_of_the_cpu_and_of_the_gpu(rank):
    with tf.device("CPU:0"):
        of_cpu = tf.Variable([rank + 5.0], name="of_cpu")
    variables = variables_of(rank)
    hvd_tf.broadcast_variables([of_cpu, *variables], 1, inplace=True)
    check(variables, 1)
    assert of_cpu.numpy() == [6.0]
    with tf.device("CPU:0"):
        assert hvd_tf.broadcast_([of_cpu], 0, name="of_cpu")[0].numpy() == [6.0]


@pytest.mark.parametrize("way", ["broadcast_", "inplace"])
@pytest.mark.parametrize("device", ["GPU:0", None])
def test_variables_of_a_session(rank, way, device):
    """Where the graph names no device, TensorFlow takes the GPU, with the broadcast too."""
    with tf.Graph().as_default():
        with tf.device(device):
            variable = v1.get_variable(
                "v", initializer=np.full([3], rank + 1.0, np.float32), use_resource=True
            )
        if way == "inplace":
            update = hvd_tf.broadcast_variables([variable], 1, inplace=True)
        else:
            update = hvd_tf.broadcast_([variable], 1)
        options = v1.RunOptions(output_partition_graphs=True)
        found = v1.RunMetadata()
        config = v1.ConfigProto(allow_soft_placement=True)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run(update, options=options, run_metadata=found)
            np.testing.assert_array_equal(session.run(variable), [2.0] * 3)
    nodes = [node for graph in found.partition_graphs for node in graph.node]
    placed = {device_of(node) for node in nodes if node.op == "VarHandleOp"}
    assert placed == {GPU_0}
