# SPDX-License-Identifier: Apache-2.0
"""Elastic training within a running job: commit, restore, and a new start of the runtime."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from hvd_tf._internal.causes import Cause, Kind, caused
from hvd_tf.elastic import running
from hvd_tf.exceptions import HorovodInternalError, HostsUpdatedInterrupt

RANKS = (2,)
IN_FULL = (3,)


def test_objects(hvd, rank, size):
    state = hvd.elastic.ObjectState(epoch=rank, seen=[rank])
    state.seen.append(6)
    state.restore()
    assert state.seen == [rank]  # as it was made
    state.sync()
    assert (state.epoch, state.seen) == (0, [0])
    state.epoch = 5
    state.seen.append(7)
    state.commit()
    state.epoch = 6
    for _ in range(2):
        state.seen.append(8)
        state.restore()
        assert (state.epoch, state.seen) == (5, [0, 7])


def test_a_broadcast_of_the_programs_own(hvd, rank, size):
    given = []

    def broadcast(obj):
        given.append(obj)
        return hvd.broadcast_object(obj, size - 1)

    state = hvd.elastic.ObjectState(broadcast, hvd.rank, epoch=rank)
    state.sync()
    assert given == [{"epoch": rank}] and state.epoch == size - 1
    state = hvd.elastic.ObjectState(hvd.broadcast_object_fn(0), hvd.rank, epoch=rank)
    state.sync()
    assert state.epoch == 0


def test_a_state_that_one_rank_alone_makes_counts_for_nobody_else(hvd, rank, size):
    if rank == 0:
        hvd.elastic.ObjectState(best=rank)
    first, second = hvd.elastic.ObjectState(a=rank), hvd.elastic.ObjectState(b=rank + 5)
    first.sync()
    second.sync()
    assert (first.a, second.b) == (0, 5)
    if rank == size - 1:
        hvd.elastic.ObjectState(best=rank)
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.a)
        if len(calls) == 1 and rank == 0:
            raise HorovodInternalError
        return total(hvd, 1)

    assert train(first) == size
    assert calls == [0, 0]


@pytest.mark.parametrize("alone", ["first", "last"])
def test_a_state_that_one_rank_alone_syncs_is_an_error_of_all(hvd, rank, size, alone):
    is_alone = rank == (0 if alone == "first" else size - 1)
    state = hvd.elastic.TensorFlowState([tf.Variable(float(rank))], epoch=rank)
    best = hvd.elastic.ObjectState(best=rank)
    shown = ["ObjectState(best=)", "TensorFlowState(epoch=)"]
    of_rank_0, of_other = shown if alone == "first" else shown[::-1]
    other = 1 if alone == "first" else size - 1
    words = f"the ranks sync different states: rank 0 {of_rank_0} and rank {other} {of_other}. "
    with pytest.raises(ValueError, match=re.escape(words)):
        (best if is_alone else state).sync()
    assert (state.epoch, best.best) == (rank, rank)


def test_attributes_that_only_rank_0_has(hvd, rank, size):
    more = {"best": 7} if rank == 0 else {}
    state = hvd.elastic.ObjectState(epoch=rank, **more)
    state.sync()
    assert (state.epoch, state.best) == (0, 7)


def test_variables(hvd, rank, size):
    variable = tf.Variable([float(rank), 2.0])
    state = hvd.elastic.TensorFlowState([variable], step=rank)
    variable.assign([9.0, 9.0])
    state.restore()
    assert variable.numpy().tolist() == [rank, 2.0] and state.step == rank
    state.sync()
    assert variable.numpy().tolist() == [0.0, 2.0] and state.step == 0


@pytest.mark.parametrize("is_given", [True, False])
def test_variables_of_a_session(hvd, rank, size, is_given):
    """The default session is that of the state where none is given."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("x", initializer=[float(rank)])
        add = variable.assign_add([1.0])
        session.run(tf.compat.v1.global_variables_initializer())
        given = {"session": session} if is_given else {}
        state = hvd.elastic.TensorFlowState(**given, step=0)
        assert state.session is session and state.variables == [variable]
        state.sync()
        session.run(add)
        state.commit()
        session.run(add)
        state.restore()
        assert session.run(variable).tolist() == [1.0]


def total(hvd, value):
    return hvd.allreduce(tf.constant(float(value)), op=hvd.Sum, name="total").numpy()


@pytest.mark.parametrize("failing", ["all", "last"])
def test_a_function_goes_on_from_its_commit(hvd, rank, size, failing):
    """Where one rank fails, a collective of the others does."""
    state = hvd.elastic.ObjectState(step=0, sums=[])
    calls, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state, last):
        calls.append(state.step)
        for state.step in range(state.step, last):  # noqa: B020
            if state.step % 3 == 0:
                state.commit()
            if state.step == 4 and len(calls) == 1 and (failing == "all" or rank == size - 1):
                raise HorovodInternalError("tried")
            state.sums.append(total(hvd, state.step + rank))
        return "done"

    assert train(state, last=8) == "done"
    assert calls == [0, 3] and resets == [size]
    extra = size * (size - 1) / 2
    assert state.sums == [size * step + extra for step in range(8)]


def test_each_way_back_is_told(hvd, rank, size, capsys):
    """A function that commits first and fails each time has no limit, so its end is the user's."""
    state = hvd.elastic.ObjectState(step=0)
    called = []

    @hvd.elastic.run
    def train(state):
        called.append(1)
        state.commit()
        if len(called) < 6:
            raise HorovodInternalError(f"try {len(called)}\nof many")
        return "done"

    assert train(state) == "done"
    told = "hvd_tf.elastic: going back to the last commit after HorovodInternalError: try"
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "going back" in line] == [f"{told} {i}" for i in range(1, 6)]


def test_an_interrupt_loses_nothing(hvd, rank, size):
    state = hvd.elastic.ObjectState(step=0)
    synced = []

    @hvd.elastic.run
    def train(state):
        synced.append(state.step)
        if len(synced) < 3:
            state.step += 1 + rank
            raise HostsUpdatedInterrupt(skip_sync=len(synced) == 1)
        return total(hvd, 1)

    assert train(state) == size
    # Without a sync each rank has its own; with one all have that of rank 0.
    assert synced == [0, 1 + rank, 2]


def test_process_sets_are_there_again(hvd, rank, size):
    state = hvd.elastic.ObjectState(called=0)
    before = [int(hvd.size_op().numpy()), hvd.global_process_set.ranks]

    @hvd.elastic.run
    def train(state):
        state.called += 1
        state.commit()
        if state.called == 1:
            raise HorovodInternalError
        return [int(hvd.size_op().numpy()), hvd.global_process_set.ranks]

    assert train(state) == before


def test_what_always_fails_is_raised(hvd, rank, size):
    called = []

    @hvd.elastic.run
    def train(state):
        called.append(1)
        raise HorovodInternalError("always")

    with pytest.raises(HorovodInternalError, match="always"):
        train(hvd.elastic.ObjectState())
    assert len(called) == 3
    assert total(hvd, 1) == size  # the runtime can be used


def test_failures_behind_a_commit_count_together(hvd, rank, size):
    state = hvd.elastic.ObjectState()
    called = []

    @hvd.elastic.run
    def train(state):
        called.append(1)
        if len(called) == 2:
            state.commit()
        if len(called) < 9:
            raise HorovodInternalError("always")

    with pytest.raises(HorovodInternalError, match="always"):
        train(state)
    assert len(called) == 4


def test_a_failure_behind_an_interrupt_without_a_sync_has_one(hvd, rank, size):
    state = hvd.elastic.ObjectState(step=0)
    begun = []

    @hvd.elastic.run
    def train(state):
        begun.append(state.step)
        if len(begun) == 1:
            raise HostsUpdatedInterrupt(skip_sync=True)
        if len(begun) == 2:
            state.step = 1 + rank
            state.commit()
            raise HorovodInternalError

    train(state)
    assert begun == [0, 0, 1]


def test_only_a_peers_failure_passes(rank, size):
    for at_fault in range(size):
        for kind, passes in ((Kind.CALL_FAILED, True), (Kind.RANK_LEFT, False)):
            error = caused(RuntimeError(), Cause(kind, at_fault))
            assert running._is_passing(error) == (passes and at_fault != rank)


class Numbers:
    """The methods of a state."""

    def __init__(self):
        self.at = self.committed = self.resets = 0

    def sync(self):
        self.save()

    def save(self):
        self.committed = self.at

    def restore(self):
        self.at = self.committed

    def reset(self):
        self.resets += 1


def of_two_bases(hvd, arguments):
    """As in Horovod, a derived class passes its base both functions, by place or by name."""

    class Derived(Numbers, hvd.elastic.State):
        def __init__(self):
            Numbers.__init__(self)
            if arguments is not None:
                hvd.elastic.State.__init__(self, *arguments[0], **arguments[1])

    return Derived()


@pytest.mark.parametrize("how", ["nothing", "place", "name", "no init"])
def test_a_state_of_ones_own(hvd, rank, size, how):
    functions = {"bcast_object": hvd.broadcast_object, "get_rank": hvd.rank}
    arguments = {
        "nothing": ((), {}),
        "place": (tuple(functions.values()), {}),
        "name": ((), functions),
        "no init": None,
    }[how]
    state = of_two_bases(hvd, arguments)
    called = []
    state.register_reset_callbacks([lambda: called.append("first")])
    state.register_reset_callbacks([lambda: called.append("second")])

    @hvd.elastic.run
    def train(state):
        while state.at < 6:  # each commit is followed by a failure
            state.at += 1
            state.commit()
            state.at += 100
            raise HorovodInternalError
        return total(hvd, 1)

    assert train(state) == size
    assert (state.at, state.resets, called) == (6, 6, ["first", "second"] * 6)


def test_an_object_with_the_methods_of_a_state(hvd, rank, size):
    class Other(Numbers):
        on_reset = Numbers.reset

    failures = []

    @hvd.elastic.run
    def train(state, times):
        if len(failures) < times:
            failures.append(state.at)
            state.at += 1
            state.save()
            raise HorovodInternalError("tried")
        return total(hvd, 1)

    state = Other()
    assert train(state, 2) == size
    assert (state.at, state.resets, failures) == (2, 2, [0, 1])
    failures.clear()
    with pytest.raises(HorovodInternalError, match="tried"):
        train(state, 3)
    assert len(failures) == 3


def test_other_errors_are_raised_at_once(hvd, rank, size):
    @hvd.elastic.run
    def train(state):
        raise KeyError("x")

    with pytest.raises(KeyError):
        train(hvd.elastic.ObjectState())
