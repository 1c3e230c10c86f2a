# SPDX-License-Identifier: Apache-2.0
"""Process sets: what init makes of them, and collectives of some of the ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

ALONE = True
RANKS = (2, 4)
HOSTS = "2x2"


@pytest.fixture(scope="module", autouse=True)
def hvd():
    """With the sets even, odd and last (a single rank)."""
    hvd_tf.init()
    size = hvd_tf.size()
    hvd_tf.shutdown()
    sets = {
        "even": hvd_tf.ProcessSet(range(0, size, 2)),
        "odd": hvd_tf.ProcessSet(list(reversed(range(1, size, 2)))),
        "all": hvd_tf.ProcessSet(range(size)),
    }
    hvd_tf.init(process_sets=list(sets.values()))
    hvd_tf.sets = sets
    yield hvd_tf
    del hvd_tf.sets
    hvd_tf.shutdown()


@pytest.fixture
def mine(hvd, rank):
    return hvd.sets["odd" if rank % 2 else "even"]


@pytest.fixture
def other(hvd, rank):
    return hvd.sets["even" if rank % 2 else "odd"]


def test_what_they_know(hvd, rank, size, mine, other):
    assert [s.process_set_id for s in hvd.sets.values()] == [1, 2, 3]
    assert hvd.sets["odd"].ranks == list(range(1, size, 2))
    assert (mine.size(), mine.rank(), mine.included()) == (size // 2, rank // 2, True)
    assert (other.rank(), other.included()) == (-1, False)
    assert hvd.global_process_set.ranks == list(range(size))
    assert hvd.process_set_included_op(mine.process_set_id).numpy() == 1
    assert hvd.process_set_included_op(other.process_set_id).numpy() == 0
    assert hvd.size_op(other.process_set_id).numpy() == size // 2
    assert str(hvd.sets["even"]).startswith("ProcessSet(process_set_id=1, ranks=[0")


def test_collectives(hvd, rank, size, mine):
    members = mine.ranks
    total = hvd.allreduce(float(rank), op=hvd.Sum, process_set=mine)
    assert total.numpy() == sum(members)
    mean = hvd.allreduce(float(rank), process_set=mine)
    assert mean.numpy() == np.mean(members)
    np.testing.assert_array_equal(hvd.allgather([rank], process_set=mine), members)
    assert hvd.broadcast(rank, members[-1], process_set=mine).numpy() == members[-1]
    slices = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([rank]), tf.constant([size, 1]))
    reduced = hvd.allreduce(slices, process_set=mine)
    np.testing.assert_array_equal(reduced.values, [[4.0 / len(members)]] * len(members))
    np.testing.assert_array_equal(reduced.indices, members)


def test_gradients(hvd, rank, mine):
    x = tf.Variable([float(rank), 1.0])
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(hvd.allgather(x, process_set=mine) * (rank + 1.0))
    expected = np.mean([r + 1.0 for r in mine.ranks])
    np.testing.assert_allclose(tape.gradient(y, x), [expected, expected])


def test_two_sets_in_opposite_order(hvd, rank, size):
    if size == 2:
        pytest.skip("its sets have one rank")
    everyone = hvd.sets["all"]

    @tf.function
    def step(x):
        sets = [everyone, hvd.global_process_set]
        if rank % 2:
            sets.reverse()
        return {
            s.process_set_id: hvd.allreduce(
                x, op=hvd.Sum, process_set=s, name=f"of_{s.process_set_id}"
            )
            for s in sets
        }

    for _ in range(5):
        assert {k: v.numpy() for k, v in step(tf.constant(1.0)).items()} == {0: size, 3: size}


def test_a_set_without_this_rank(hvd, other):
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a member"):
        hvd.allreduce(1.0, process_set=other)


def test_a_root_outside_of_the_set(hvd, mine, other):
    with pytest.raises(tf.errors.InvalidArgumentError, match="root_rank"):
        hvd.broadcast(1.0, other.ranks[0], process_set=mine)


@pytest.mark.parametrize("wrong", ["no list", [0, "1"], [0, 1.5], [], [0, 0], 3])
def test_what_is_no_set(hvd, wrong):
    with pytest.raises(ValueError):
        hvd.ProcessSet(wrong)


def test_init_refuses_and_then_works(hvd, rank, size):
    everyone = list(range(size))
    before = list(hvd.sets.values())
    hvd.shutdown()
    try:
        twice = [hvd.ProcessSet([0]), hvd.ProcessSet(everyone), hvd.ProcessSet(everyone)]
        with pytest.raises(ValueError, match=r"process_sets\[2\]"):
            hvd.init(process_sets=twice)
        assert twice[1].process_set_id is None
        with pytest.raises(ValueError, match=str(size)):
            hvd.init(process_sets=[[0, size]])
        assert not hvd.is_initialized()
        with pytest.raises(ValueError, match="global_process_set"):
            hvd.init(process_sets=[hvd.global_process_set])
        with pytest.raises(ValueError, match="dynamic"):
            hvd.init(process_sets="dynamic")
        with pytest.raises(ValueError, match=r"process_sets is \[\[0\]\] on rank 0 and \[\] on"):
            hvd.init(process_sets=[[0]] if rank == 0 else [])
        assert not hvd.is_initialized()
    finally:
        hvd.init(process_sets=before)
    assert hvd.allreduce(1, op=hvd.Sum, process_set=hvd.sets["all"]).numpy() == size
