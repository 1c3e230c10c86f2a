# SPDX-License-Identifier: Apache-2.0
"""HVD_GPU_LANE=1 on a GPU that is made up, whose memory faults when the host touches it.

The tests of other files run on it too: those that say GPU.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

import fake_gpu
import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = ()
GPU = (1, 3)

v1 = tf.compat.v1
GPU_0 = "/device:GPU:0"


def on_gpu(array, dtype=np.float32):
    with tf.device("CPU:0"):
        made = tf.constant(np.asarray(array, dtype))
    with tf.device("GPU:0"):
        return tf.identity(made)


def devices_of(*tensors):
    return {tensor.device.rpartition("/task:0")[2] for tensor in tensors}


def test_there_is_such_a_gpu():
    assert "HVD_GPU_LANE" not in os.environ
    assert fake_gpu.GPU_VARIABLE in os.environ
    assert devices_of(on_gpu([1.0])) == {GPU_0}


def sent_by_host():
    return hvd.comm_stats()["verbs"].get("allreduce", {}).get("payload_bytes", 0)


def test_nccl_takes_over(rank, size):
    if os.environ.get(fake_gpu.NCCL_VARIABLE) != "1" or size == 1:
        pytest.skip("needs a GPU, and HVD_TEST_NCCL=1")
    took, limit = False, time.monotonic() + 60
    while not took:
        before = sent_by_host()
        for _ in range(3):
            total = hvd.allreduce(on_gpu([rank + 1.0]), op=hvd.Sum, name="over")
            assert total.numpy() == size * (size + 1) / 2
        mine = tf.constant([sent_by_host() == before, time.monotonic() < limit], tf.int32)
        with tf.device("CPU:0"):
            took, waits = hvd.allreduce(mine, op=hvd.Min, name="by NCCL").numpy()
        assert waits, "NCCL was not ready within a minute"


def test_results_stay_on_the_gpu(size):
    x = on_gpu(np.ones([2 * size, 3]))
    with tf.device("GPU:0"):
        results = [
            hvd.allreduce(x, op=hvd.Sum),
            *hvd.grouped_allreduce([x, x], op=hvd.Sum),
            hvd.allgather(x),
            *hvd.grouped_allgather([x, x]),
            hvd.broadcast(x, size - 1),
            hvd.alltoall(x),
            hvd.reducescatter(x, op=hvd.Sum),
            *hvd.grouped_reducescatter([x, x], op=hvd.Sum),
        ]
    assert devices_of(*results) == {GPU_0}
    sums = [result.numpy().sum() for result in results]
    of_all = 6.0 * size
    assert sums == [of_all * size] * 3 + [of_all * size] * 3 + [of_all] * 2 + [of_all] * 3


def test_gradients_of_eager_code_stay_on_the_gpu(rank, size):
    x, upstream = on_gpu([1.0, 2.0]), on_gpu([3.0 * (rank + 1)] * 2)
    for options in ({}, {"compression": hvd.Compression.fp16}, {"groups": 1}):
        with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
            tape.watch(x)
            y = tf.identity(x)
        gradient = tape.gradient(y, x, output_gradients=upstream)
        assert devices_of(gradient) == {GPU_0}
        np.testing.assert_array_equal(gradient, [1.5 * (size + 1)] * 2)


def test_splits_are_in_host_memory(rank, size):
    splits = [peer + 1 for peer in range(size)]
    x = on_gpu(np.full([sum(splits), 2], rank))
    with tf.device("GPU:0"):
        received, rows = hvd.alltoall(x, splits=tf.constant(splits, tf.int32))
    assert devices_of(received) == {GPU_0}
    np.testing.assert_array_equal(rows, [rank + 1] * size)
    np.testing.assert_array_equal(received, np.repeat(np.arange(size), rank + 1)[:, None] * [1, 1])


def rows_of(rank, rows=40, width=3):
    """Ids, several of them twice, and a row for each."""
    rng = np.random.default_rng([5, rank])
    return rng.integers(0, (rows + 1) // 2, rows), rng.integers(-8, 8, (rows, width)) / 4


def added_up(of_ranks, rows=40):
    """The ids of any rank, and the sums of their rows."""
    sums = np.zeros([rows, of_ranks[0][1].shape[1]])
    for ids, values in of_ranks:
        np.add.at(sums, ids, values)
    united = np.unique(np.concatenate([ids for ids, _ in of_ranks]))
    return united, sums[united]


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
def test_rows_with_ids(rank, size, dtype):
    """Values stay on the GPU. Ids are in host memory."""
    ids, values = rows_of(rank)
    united, want = added_up([rows_of(peer) for peer in range(size)])
    if dtype == "int32":
        values, want = values * 4, want * 4
    slices = tf.IndexedSlices(on_gpu(values, dtype), tf.constant(ids), tf.constant([40, 3]))
    none = tf.IndexedSlices(on_gpu(np.ones([0, 2]), dtype), tf.zeros([0], tf.int64), [5, 2])
    with tf.device("GPU:0"):
        found, nothing = hvd.grouped_allreduce([slices, none], op=hvd.Sum, name=f"rows {dtype}")
    assert devices_of(found.values, nothing.values) == {GPU_0}
    np.testing.assert_array_equal(found.indices, united)
    np.testing.assert_array_equal(found.values, want.astype(dtype))
    assert nothing.values.shape == [0, 2]


def test_rows_are_averaged_and_compressed(rank, size):
    ids, values = rows_of(rank)
    united, want = added_up([rows_of(peer) for peer in range(size)])

    @tf.function(autograph=False)
    def step(values, ids):
        with tf.device("GPU:0"):
            slices = tf.IndexedSlices(values, ids, tf.constant([40, 3]))
            return [
                hvd.allreduce(slices, name="averaged"),
                hvd.allreduce(slices, op=hvd.Sum, compression=hvd.Compression.fp16, name="half"),
            ]

    for _ in range(3):
        averaged, half = step(on_gpu(values), tf.constant(ids, tf.int32))
        for found in (averaged, half):
            np.testing.assert_array_equal(found.indices, united)
        np.testing.assert_allclose(averaged.values, want / size, rtol=1e-6)
        np.testing.assert_array_equal(half.values, want.astype(np.float16).astype(np.float32))


def test_rows_in_a_session(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        ids, values = v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None, 3])
        with tf.device("GPU:0"):
            slices = tf.IndexedSlices(tf.identity(values), ids, tf.constant([40, 3], tf.int64))
            sums = hvd.allreduce(slices, op=hvd.Sum, name="rows_of_a_session")
        for rows in (40, 1, 17):
            given = dict(zip((ids, values), rows_of(rank, rows=rows)))
            found = session.run([sums.indices, sums.values], given)
            united, want = added_up([rows_of(peer, rows=rows) for peer in range(size)])
            np.testing.assert_array_equal(found[0], united)
            np.testing.assert_array_equal(found[1], want.astype(np.float32))


def test_an_id_outside_of_its_table(rank, size):
    slices = tf.IndexedSlices(on_gpu(np.ones([1, 3])), tf.constant([40 * (rank == 0)]), [40, 3])
    with tf.device("GPU:0"), pytest.raises(tf.errors.OpError, match=r"indices\[0\] is 40"):
        hvd.allreduce(slices, op=hvd.Sum, name="outside")


def test_many_sizes_in_any_order(rank, size):
    """Tensors of the host and of the GPU, of which some fuse, each in an order of its own."""
    sizes = [0, 1, 7, 100, 4096, 5, 70_001, 3, 300_000, 2]
    order = list(range(len(sizes)))
    random.Random(rank).shuffle(order)

    @tf.function(autograph=False)
    def step(given):
        results = {}
        for i in order:
            with tf.device("CPU:0" if i % 3 == 1 else "GPU:0"):
                results[i] = hvd.allreduce(given[i], op=hvd.Sum, name=f"many.{i}")
        return [results[i] for i in range(len(sizes))]

    for round_ in range(5):
        given = [on_gpu(np.arange(count) % 97 + round_ + i + rank) for i, count in enumerate(sizes)]
        for i, (count, result) in enumerate(zip(sizes, step(given))):
            want = size * (np.arange(count) % 97 + round_ + i) + size * (size - 1) / 2
            np.testing.assert_array_equal(result, want.astype(np.float32), err_msg=f"{round_} {i}")


def test_a_session_uses_it(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None])
        with tf.device("GPU:0"):
            total = hvd.allreduce(tf.identity(x), op=hvd.Sum, name="of_a_session")
            rows = hvd.allgather(tf.identity(x), name="rows_of_a_session")
        for count in (3, 3, 0, 5):
            of_one = np.arange(count, dtype=np.float32)
            found = session.run([total, rows], {x: of_one + rank})
            np.testing.assert_array_equal(found[0], of_one * size + size * (size - 1) / 2)
            np.testing.assert_array_equal(
                found[1], np.concatenate([of_one + peer for peer in range(size)])
            )


def test_work_of_the_host_in_a_session_for_the_gpu(rank, size):
    """A session places nothing elsewhere by itself."""
    with tf.Graph().as_default(), v1.Session() as session, tf.device("GPU:0"):
        found = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
        found.append(hvd.process_set_included_op())
        assert session.run([tf.identity(one) for one in found]) == [rank, size, rank, size, 1]
        assert session.run(hvd.join()) in range(size)


def test_variables_of_the_gpu(rank, size, monkeypatch):
    with tf.device("GPU:0"):
        variables = [tf.Variable(on_gpu(np.full([count], rank + count))) for count in (1, 4, 1000)]
    assert devices_of(*variables) == {GPU_0}
    kept = variables[0].read_value()

    def traced(*_, **__):
        raise AssertionError("a function is traced for a call")

    monkeypatch.setattr(tf, "function", traced)
    hvd.broadcast_variables(variables, root_rank=size - 1)
    for variable, count in zip(variables, (1, 4, 1000)):
        np.testing.assert_array_equal(variable.numpy(), np.full([count], size - 1.0 + count))
    # Who had read the old value keeps it.
    assert kept.numpy() == [rank + 1]


def test_an_integer_keeps_no_other_variable_on_the_cpu(rank, size):
    """TensorFlow has no such variables on a GPU, and one kernel is on one device."""
    with tf.Graph().as_default():
        variables = [
            v1.get_variable(str(dtype), initializer=np.full([3], rank, dtype), use_resource=True)
            for dtype in ("int32", "float32")
        ]
        update = hvd.broadcast_variables(variables, size - 1, inplace=True)
        options, found = v1.RunOptions(output_partition_graphs=True), v1.RunMetadata()
        with v1.Session(config=v1.ConfigProto(allow_soft_placement=True)) as session:
            session.run(v1.global_variables_initializer())
            session.run(update, options=options, run_metadata=found)
            for values in session.run(variables):
                np.testing.assert_array_equal(values, [size - 1] * 3)
    nodes = [node for graph in found.partition_graphs for node in graph.node]
    placed = {node.name: node.device for node in nodes if node.op == "VarHandleOp"}
    if size > 1:
        assert placed["float32"].endswith(GPU_0)


def test_scales_of_a_set_of_one_rank(rank):
    alone = hvd.ProcessSet([rank]) if hvd.size() == 1 else None
    if alone is None:
        pytest.skip("the global set has several ranks")
    x = on_gpu([1.0, -2.0])
    with tf.device("GPU:0"):
        scaled = hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        rounded = hvd.allreduce(on_gpu([1.0001]), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert devices_of(scaled) == {GPU_0}
    np.testing.assert_array_equal(scaled, [1.5, -3.0])
    np.testing.assert_array_equal(rounded, [np.float32(np.float16(1.0001))])


def test_objects_stay_on_the_host(rank, size):
    if size == 1:
        pytest.skip("one rank")
    assert hvd.broadcast_object({"of": rank}, 1) == {"of": 1}
    assert len(hvd.allgather_object(rank)) == size
    # One rank is in a graph, which has no GPU.
    with tf.Graph().as_default() if rank == 0 else contextlib.nullcontext():
        assert hvd.broadcast_object(rank, 0) == 0


def test_variables_of_the_cpu_and_of_the_gpu_in_one_call(rank, size):
    with tf.device("CPU:0"):
        of_cpu = tf.Variable([rank + 5.0])
    with tf.device("GPU:0"):
        of_gpu = tf.Variable(on_gpu([rank + 7.0]))
    values = hvd.broadcast_([of_cpu, of_gpu], size - 1, name="both")
    assert [value.numpy() for value in values] == [size + 4.0, size + 6.0]
    assert devices_of(of_cpu) == {"/device:CPU:0"}
    assert devices_of(of_gpu) == {GPU_0}


def test_copies_of_a_strategy(rank, size):
    strategy = tf.distribute.MirroredStrategy(["GPU:0", "CPU:0"])
    with strategy.scope():
        variable = tf.Variable(np.full([2], rank, np.float32))
    for root, broadcast in enumerate([hvd.broadcast_variables, hvd.broadcast_][:size]):
        variable.assign([rank, rank])
        broadcast([variable], root)
        assert [copy.numpy().tolist() for copy in variable.values] == [[root, root]] * 2


def test_a_variable_of_the_cpu_keeps_no_other_there(rank, size):
    if size == 1:
        pytest.skip("one rank broadcasts nothing")
    with tf.Graph().as_default():
        one = v1.get_variable("one", initializer=np.full([3], rank, np.float32), use_resource=True)
        with tf.device("CPU:0"):
            reader = tf.raw_ops.ReadVariableOp(resource=one.handle, dtype=tf.float32)
        other = v1.get_variable(
            "other", initializer=np.full([3], rank, np.float32), use_resource=True
        )
        with v1.device("CPU:0"):
            kept = v1.assign(one, reader)
        update = hvd.broadcast_variables([one, other], 0, inplace=True)
        found, config = v1.RunMetadata(), v1.ConfigProto(allow_soft_placement=True)
        options = v1.RunOptions(output_partition_graphs=True)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run([update, kept], options=options, run_metadata=found)
            np.testing.assert_array_equal(session.run(other), [0.0] * 3)
    nodes = [node for graph in found.partition_graphs for node in graph.node]
    placed = {node.name: node.device for node in nodes if node.op == "VarHandleOp"}
    assert placed["other"].endswith(GPU_0)


def test_ranks_on_different_devices_are_told(rank, size):
    if size == 1:
        pytest.skip("one rank")
    with tf.device("CPU:0" if rank == 0 else "GPU:0"):
        x = tf.identity(on_gpu([1.0]))
        with pytest.raises(tf.errors.FailedPreconditionError) as caught:
            hvd.allreduce(x, op=hvd.Sum, name="mixed")
    assert "'mixed'" in str(caught.value)
    assert "rank 0: CPU" in str(caught.value)
    assert "GPU). Place it on the same kind of device" in str(caught.value)


def test_shapes_differ(rank, size):
    if size == 1:
        pytest.skip("one rank")
    with tf.device("GPU:0"), pytest.raises(tf.errors.FailedPreconditionError, match="shapes"):
        hvd.allreduce(on_gpu(np.ones([2 + (rank == 0)])), op=hvd.Sum, name="shapes")
    with tf.device("GPU:0"):
        assert hvd.allreduce(on_gpu(1.0), op=hvd.Sum, name="after").numpy() == size


def test_an_aborted_step_ends_on_all_ranks(rank, size, flags):
    """While a tensor of the GPU waits for the peers. The next step is right."""
    is_last = rank == size - 1
    lost = []

    def fail(value):
        time.sleep(0.1)  # mostly `early` waits by then
        if is_last and value[0, 0] < 0:
            raise ValueError("poison")
        return value

    def wait(value):
        if value[0] < 0 and not is_last:
            flags.wait(len(lost))
        return value

    @tf.function(autograph=False)
    def step(x):
        with tf.device("CPU:0"):
            waited = tf.numpy_function(wait, [x], tf.float32)
        with tf.device("GPU:0"):
            # It has another shape, so that TensorFlow cannot take `waited` for it.
            on_gpu = tf.reshape(waited, [2, 25_000])
            early = hvd.allreduce(on_gpu, op=hvd.Sum, name="early")
        with tf.device("CPU:0"):
            # Behind what `early` waits for: what fails ends the copies between devices.
            checked = tf.numpy_function(fail, [tf.identity(on_gpu)], tf.float32)
        with tf.device("GPU:0"):
            late = hvd.allreduce(tf.identity(checked), op=hvd.Sum, name="late")
        return early, late

    with tf.device("CPU:0"):
        good, bad = tf.fill([50_000], 1.0), tf.fill([50_000], -1.0)
    for turn in range(3):
        for result in step(good):
            np.testing.assert_array_equal(result, np.full([2, 25_000], float(size)))
        lost.append(turn)
        with pytest.raises(tf.errors.OpError) as caught:
            step(bad)
        if is_last:
            assert "poison" in str(caught.value)
            flags.raise_(len(lost))
            # A peer's `late` of the lost step must not meet that of this rank's next step.
            for peer in range(rank):
                flags.wait(f"{len(lost)}-{peer}")
        else:
            assert f"rank {size - 1}" in str(caught.value)
            flags.raise_(f"{len(lost)}-{rank}")
    assert hvd.allreduce(1, op=hvd.Sum, name="after").numpy() == size
