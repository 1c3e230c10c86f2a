# SPDX-License-Identifier: Apache-2.0
"""Process sets that are added and removed after init."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf._internal import native

OWN_INIT = True
RANKS = (3,)
HOSTS = "2x2"


@pytest.fixture(scope="module", autouse=True)
def hvd():
    hvd_tf.init(process_sets="dynamic")
    yield hvd_tf
    hvd_tf.shutdown()


def total(value, process_set, name="total"):
    return hvd_tf.allreduce(value, op=hvd_tf.Sum, process_set=process_set, name=name).numpy()


def test_ids_and_members(hvd, rank, size):
    first = hvd.add_process_set([1, 0])
    second = hvd.add_process_set(hvd.ProcessSet([size - 1]))
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    assert (first.ranks, first.size(), first.included()) == ([0, 1], 2, rank < 2)
    assert (first.rank(), second.rank()) == (rank if rank < 2 else -1, -1 if rank < size - 1 else 0)
    known = hvd_tf.process_sets.ids_and_ranks()
    assert known == {0: list(range(size)), 1: [0, 1], 2: [size - 1]}
    assert hvd.size_op(1).numpy() == 2
    assert hvd.process_set_included_op(1).numpy() == int(rank < 2)
    if first.included():
        assert total(rank + 1, first) == 3
        np.testing.assert_array_equal(hvd.allgather([rank], process_set=first, name="g"), [0, 1])
    if second.included():
        assert total(rank, second) == rank
    assert hvd.remove_process_set(first) is True
    assert (first.process_set_id, first.size()) == (None, None)
    assert hvd.process_set_included_op(1).numpy() < 0
    with pytest.raises(ValueError, match="not registered; pass it to .* or hvd.add_process_set"):
        total(1, first)
    # Ids are used again.
    third = hvd.add_process_set([1, 2])
    assert third.process_set_id == 1
    if third.included():
        assert total(rank, third) == 3
    assert hvd.remove_process_set(second) and hvd.remove_process_set(third)
    assert set(hvd_tf.process_sets.ids_and_ranks()) == {0}
    assert total(1, hvd.global_process_set) == size


def test_every_object_of_a_set_forgets_it(hvd):
    added, same = hvd.add_process_set([0, 1]), hvd.ProcessSet([1, 0])
    hvd.init(process_sets=[same])
    assert same.process_set_id == added.process_set_id == 1
    assert hvd.remove_process_set(added)
    assert (added.process_set_id, same.process_set_id) == (None, None)


def test_what_is_not_removed(hvd):
    unregistered = hvd.ProcessSet([0, 1])
    assert hvd.remove_process_set(unregistered) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ValueError, match="takes a ProcessSet, not"):
        hvd.remove_process_set([0, 1])


def test_mistakes_are_the_same_on_every_rank(hvd, rank, size):
    known = hvd.add_process_set([0, 1])
    with pytest.raises(ValueError, match=r"process set 1 has the same ranks"):
        hvd.add_process_set([1, 0])
    with pytest.raises(ValueError, match="these are all ranks, which hvd.global_process_set has"):
        hvd.add_process_set(range(size))
    with pytest.raises(ValueError, match=f"names rank {size}"):
        hvd.add_process_set([0, size])
    with pytest.raises(ValueError, match="is registered already"):
        hvd.add_process_set(known)
    with pytest.raises(ValueError, match=r"failed on rank 1, and so on all .*each rank once"):
        hvd.add_process_set([0, 0] if rank == 1 else [0, 2])
    with pytest.raises(ValueError, match=r"set\(\[0\]\) on rank 0, .*\(\[1\]\) on rank 1"):
        hvd.add_process_set([rank])
    with pytest.raises(ValueError, match=r"remove_process_set of set 1 on rank 2"):
        if rank == 2:
            hvd.remove_process_set(known)
        else:
            hvd.add_process_set([0, 2])
    assert known.process_set_id == 1
    assert hvd.remove_process_set(known)


def test_a_rank_that_has_joined_is_not_waited_for(hvd, rank, size):
    """It makes no call until all ranks have joined."""
    if rank != size - 1:
        text = rf"\(\[0, 1\]\) needs .* hvd.join\(\) has been called on rank {size - 1};"
        with pytest.raises(ValueError, match=text):
            hvd.add_process_set([0, 1])
    hvd.join()
    added = hvd.add_process_set([0, 1])
    assert hvd.remove_process_set(added)


def test_removal_fails_what_waits(hvd, rank):
    process_set = hvd.add_process_set([0, 1])
    set_id = process_set.process_set_id

    def wait():
        # By its id, as graphs have it. The object forgets it when the set is removed.
        native.ops.horovod_allreduce(
            tensor=1.0, reduce_op=hvd.Sum, process_set_id=set_id, tensor_name="alone"
        )

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait) if rank == 0 else None
        hvd.allreduce(1.0, name="meanwhile_0")
        # The thread may not have asked yet. Then the id is unknown. Both end it.
        assert hvd.remove_process_set(process_set)
        if waiting is not None:
            with pytest.raises(tf.errors.OpError, match="was removed by remove_p|is unknown"):
                waiting.result()


def test_a_traced_graph_names_a_set_by_its_id(hvd, rank):
    process_set = hvd.add_process_set([0, 1])

    @tf.function
    def step(x):
        return hvd_tf.allreduce(x, op=hvd_tf.Sum, process_set=process_set, name="step")

    if rank < 2:
        assert step(tf.constant(2.0)).numpy() == 4
    assert hvd.remove_process_set(process_set)
    if rank < 2:
        with pytest.raises(tf.errors.InvalidArgumentError, match="process set 1 is unknown"):
            step(tf.constant(2.0))
    other = hvd.add_process_set([1, 2])
    if rank == 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0 is not a member of .* 1"):
            step(tf.constant(2.0))
    elif rank == 1:
        assert step(tf.constant(2.0)).numpy() == 5
    elif rank == 2:
        assert total(3.0, other, "step") == 5
    assert hvd.remove_process_set(other)


def test_gradients_in_sets_that_share_an_id_one_after_another(hvd, rank, size):
    """Rank 1 has had an optimizer in the first set, and rank 2 has not."""
    weight = tf.Variable([1.0, 2.0])
    for ranks in ([0, 1], [1, 2]):
        process_set = hvd.add_process_set(ranks)
        if process_set.included():
            tape = hvd_tf.DistributedGradientTape(tf.GradientTape(), process_set=process_set)
            with tape:
                loss = tf.reduce_sum(weight * (rank + 1.0))
            gradient = tape.gradient(loss, [weight])[0]
            np.testing.assert_allclose(gradient, [np.mean(ranks) + 1] * 2)
        assert hvd.remove_process_set(process_set)


def test_they_come_and_go_while_the_job_trains(hvd, rank, size):
    under_way, stop = threading.Event(), threading.Event()
    steps = []

    @tf.function
    def step(x, stops):
        return hvd_tf.grouped_allreduce([x, stops], op=hvd_tf.Sum, name="train")

    def train():
        try:
            while True:
                value = len(steps) % 100 + 1.0
                x, stops = step(tf.fill([5000], value), tf.constant(float(stop.is_set())))
                steps.append(bool(np.all(x == size * value)))
                if len(steps) == 2:
                    under_way.set()
                if stops == size:
                    return
        finally:
            under_way.set()

    with ThreadPoolExecutor(1) as pool:
        trainer = pool.submit(train)
        under_way.wait()
        try:
            for cycle in range(100):
                ranks = [cycle % size, (cycle + 1) % size]
                process_set = hvd.add_process_set(ranks)
                assert process_set.process_set_id == 1
                if process_set.included():
                    assert total(rank + cycle, process_set) == sum(ranks) + 2 * cycle
                assert hvd.remove_process_set(process_set)
        finally:
            stop.set()
        trainer.result()  # raises what ended the thread
    assert len(steps) > 2 and all(steps)


def test_without_memory_on_one_rank_no_rank_has_the_set(hvd, rank, size, monkeypatch):
    hvd.shutdown()
    try:
        monkeypatch.setenv("HVD_SHM_BYTES", "600000")  # two sets of a rank take some 560,000
        hvd.init(process_sets="dynamic")
        sets = [hvd.add_process_set(ranks) for ranks in ([0], [0, 1])]
        third = [0, 2] if size == 3 else [0, 1, 2]  # that needs memory where there are two hosts
        with pytest.raises(MemoryError, match=r"failed on rank 0, and so on all .*HVD_SHM_BYTES"):
            hvd.add_process_set(third)
        assert set(hvd_tf.process_sets.ids_and_ranks()) == {0, 1, 2}
        for process_set in sets:
            if process_set.included():
                assert total(1, process_set, "each") == process_set.size()
            assert hvd.remove_process_set(process_set)
    finally:
        hvd.shutdown()
        monkeypatch.delenv("HVD_SHM_BYTES")
        hvd.init(process_sets="dynamic")


def test_a_later_init_knows_none_of_them(hvd, rank, size, monkeypatch):
    added = hvd.add_process_set([0, 1])
    hvd.shutdown()
    try:
        assert added.process_set_id is None
        with pytest.raises(ValueError, match="has not been initialized"):
            hvd.add_process_set([0, 1])
        # Horovod's variable does the same as "dynamic", beside sets that are there from the start.
        monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        start = hvd.ProcessSet([0])
        hvd.init(process_sets=[start])
        assert hvd.add_process_set(added) is added and added.process_set_id == 2
        assert hvd.remove_process_set(start) and start.process_set_id is None
        if rank < 2:
            assert total(1, added) == 2
        hvd.shutdown()
        monkeypatch.delenv("HOROVOD_DYNAMIC_PROCESS_SETS")
        hvd.init()
        with pytest.raises(ValueError, match='or hvd.init\\(process_sets="dynamic"\\)'):
            hvd.add_process_set(added)
    finally:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
