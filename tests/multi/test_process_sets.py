# SPDX-License-Identifier: Apache-2.0
"""Process sets: what init makes of them, and collectives of some of the ranks."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf.data.agreement import Iteration

OWN_INIT = True
RANKS = (2,)
GPU = (2,)
HOSTS = "2x2"
IN_FULL = (4,)


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


def test_copies_are_the_same_set(hvd, mine):
    everyone = hvd.global_process_set
    for process_set in (everyone, mine):
        assert copy.deepcopy([process_set]) == [process_set] == copy.copy([process_set])
    assert pickle.loads(pickle.dumps(everyone)) is everyone
    assert pickle.loads(pickle.dumps(mine)).ranks == mine.ranks


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


def test_collectives_of_rows(hvd, rank, mine):
    count = mine.size()
    output = hvd.alltoall(np.full(count, rank), process_set=mine)
    assert output.numpy().tolist() == mine.ranks
    result = hvd.reducescatter(np.full((count, 1), rank), op=hvd.Sum, process_set=mine)
    assert result.numpy().tolist() == [[sum(mine.ranks)]]
    hvd.barrier(process_set=mine)


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


def test_they_stay_unless_they_are_dynamic(hvd, mine):
    for change in (hvd.add_process_set, hvd.remove_process_set):
        with pytest.raises(ValueError, match=f"{change.__name__} needs HVD_DYNAMIC_PROCESS_SETS=1"):
            change(mine)
    assert mine.process_set_id in (1, 2)


@pytest.mark.parametrize("wrong", ["no list", [0, "1"], [0, 1.5], [], [0, 0], 3, [2**32]])
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
        with pytest.raises(ValueError, match="'static': pass a list of ProcessSet, or"):
            hvd.init(process_sets="static")
        with pytest.raises(ValueError, match="HVD_DYNAMIC_.* is 1 on rank 0 and 0 on"):
            hvd.init(process_sets="dynamic" if rank == 0 else None)
        with pytest.raises(ValueError, match=r"process_sets is \[\[0\]\] on rank 0 and \[\] on"):
            hvd.init(process_sets=[[0]] if rank == 0 else [])
        assert not hvd.is_initialized()
    finally:
        hvd.init(process_sets=before)
    assert hvd.allreduce(1, op=hvd.Sum, process_set=hvd.sets["all"]).numpy() == size


def test_shutdown_forgets_the_sets(hvd, rank, size):
    """Also those of init: another set may have the id in the next one."""
    before = list(hvd.sets.values())
    hvd.barrier()
    hvd.shutdown()
    try:
        assert [(s.process_set_id, s.size(), s.included()) for s in before] == [(None,) * 3] * 3
        last = hvd.ProcessSet([size - 1])
        hvd.init(process_sets=[last])
        assert last.process_set_id == 1
        for stale in before:
            with pytest.raises(ValueError, match="not registered; pass it to hvd.init"):
                hvd.allreduce(1.0, process_set=stale)
        hvd.barrier()
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        assert last.size() is None
        assert hvd.add_process_set(last) is last and last.process_set_id == 1
        if rank == size - 1:
            assert hvd.allreduce(3.0, process_set=last).numpy() == 3
        hvd.barrier()
        hvd.shutdown()
    finally:
        hvd.init(process_sets=before)
    assert [s.process_set_id for s in before] == [1, 2, 3]
    assert hvd.allreduce(1, op=hvd.Sum, process_set=hvd.sets["all"]).numpy() == size


def test_init_while_hvd_runs(hvd, rank, size, mine):
    """It knows sets by their ranks, and says so of those that it does not know."""
    known = list(hvd.sets.values())
    hvd.init()
    hvd.init(process_sets=[])
    hvd.init(process_sets=known)
    same, plain = hvd.ProcessSet(mine.ranks), mine.ranks
    hvd.init(process_sets=[known[2], same, plain])
    assert same.process_set_id == mine.process_set_id
    assert hvd.allreduce(1, op=hvd.Sum, process_set=same).numpy() == mine.size()
    again, new = hvd.ProcessSet(range(size)), hvd.ProcessSet([0, size])
    with pytest.raises(ValueError, match=r"process_sets\[1\], .*, is not registered, and hvd runs"):
        hvd.init(process_sets=[again, new])
    assert (again.process_set_id, new.process_set_id) == (None, None)
    with pytest.raises(ValueError, match="'static': pass a list of ProcessSet, or"):
        hvd.init(process_sets="static")
    assert [s.process_set_id for s in known] == [1, 2, 3]


# ---- input of the sets -------------------------------------------------------------------------


def data_of(rank, length):
    """Odd ranks have other records than even ones, and more of them."""
    return tf.data.Dataset.range(1000 * (rank % 2), 1000 * (rank % 2) + length)


@pytest.mark.parametrize("known", [True, False])
def test_sets_share_out_data_of_their_own(mine, rank, capfd, known):
    """Both sets train at once, in different numbers of steps. The odd set lacks rank 0."""
    length = (10 + 7 * (rank % 2)) * mine.size() + mine.size() - 1
    records = data_of(rank, length)
    if not known:
        records = records.filter(lambda number: number >= 0)
    epochs = 1 + rank % 2
    dataset = hvd_tf.data.shard(records, 2, epochs=epochs, process_set=mine).prefetch(2)
    assert len(list(dataset)) > 0  # and once more
    seen = []
    for batch in dataset:
        total = hvd_tf.allreduce(tf.size(batch), op=hvd_tf.Sum, name="step", process_set=mine)
        assert total >= mine.size()
        seen.append(batch.numpy().tolist())
    everyones = hvd_tf.allgather_object(seen, name="seen", process_set=mine)
    assert len({len(theirs) for theirs in everyones}) == 1
    counts = np.bincount(np.concatenate([np.concatenate(theirs) for theirs in everyones]))
    first = 1000 * (rank % 2)
    assert not counts[:first].any() and counts[first:].max() == epochs
    assert counts.sum() > epochs * (length - 2 * mine.size())
    assert seen[0] == [first + mine.rank(), first + mine.rank() + mine.size()][: len(seen[0])]
    told = capfd.readouterr().err
    hvd_tf.allgather_object(None, name="done")
    assert "Traceback" not in told and "left its dataset" not in told


def test_files_go_to_the_ranks_of_a_set(mine, rank, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("files"))
    folder = hvd_tf.broadcast_object(folder, mine.ranks[0], name="folder", process_set=mine)
    for part in range(2):
        if mine.rank() == 0:
            with tf.io.TFRecordWriter(f"{folder}/{part}.tfrecord") as writer:
                for number in range(6):
                    writer.write(f"{rank}/{part}/{number}")
    hvd_tf.allgather_object(None, name="written", process_set=mine)
    share = hvd_tf.data.shard(f"{folder}/*.tfrecord", process_set=mine)
    seen = [record.decode() for record in share.as_numpy_iterator()]
    everyones = hvd_tf.allgather_object(seen, name="seen", process_set=mine)
    wanted = [f"{mine.ranks[0]}/{part}/{number}" for part in range(2) for number in range(6)]
    assert sorted(sum(everyones, [])) == wanted
    if mine.size() == 2:  # a whole file for each
        assert seen == wanted[6 * mine.rank() :][:6]


def test_mistakes_in_the_input_of_a_set(hvd, mine, rank):
    """The other set does not notice."""
    other = hvd.sets["even" if rank % 2 else "odd"]
    with pytest.raises(ValueError, match="this rank is not a member of .* on its members only"):
        hvd.data.shard(tf.data.Dataset.range(8), process_set=other)
    lengths = 8 + (mine.rank() if rank % 2 else 0)
    if rank % 2 and mine.size() > 1:
        with pytest.raises(ValueError, match="length of the dataset differs: 8 on rank 0, 9 on"):
            hvd.data.shard(tf.data.Dataset.range(lengths), process_set=mine)
    else:
        share = hvd.data.shard(tf.data.Dataset.range(lengths), process_set=mine)
        assert len(list(share)) == 8 // mine.size()
    dataset = tf.data.Dataset.range(8).filter(lambda number: number < 2 * (mine.rank() == 0))
    if mine.size() > 1:
        with pytest.raises(ValueError, match="sharded already, by Dataset.shard"):
            part = tf.data.Dataset.range(8).shard(mine.size(), mine.rank())
            hvd.data.shard(part, process_set=mine)
        dataset = hvd.data.equal_steps(dataset, process_set=mine)
        with pytest.raises(tf.errors.OpError, match="rank 1 has no batch at all"):
            list(dataset)


def test_an_iteration_may_end_after_its_set(hvd):
    gone = hvd.ProcessSet([0])
    Iteration("data/gone", gone).say_farewell("it left")
    assert gone.process_set_id is None
