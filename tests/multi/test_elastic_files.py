# SPDX-License-Identifier: Apache-2.0
"""A state and the file of its commits: what an earlier start has left is not lost."""

from __future__ import annotations

import itertools
import pickle
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf.elastic import states
from hvd_tf.exceptions import HorovodInternalError

RANKS = (2,)
IN_FULL = (3,)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function after which states are those of a new start of the job."""
    monkeypatch.setenv("HVD_ELASTIC_DIR", str(tmp_path))

    def begin():
        monkeypatch.setattr(states, "_numbers", itertools.count())

    begin()
    return begin


def test_a_commit_outlives_a_first_sync_that_fails(hvd, rank, size, start):
    class FailsOnce(hvd.elastic.TensorFlowState):
        fails = rank == size - 1

        def sync(self):
            if self.fails:
                self.fails = False
                raise HorovodInternalError("tried")
            super().sync()

    variable = tf.Variable(0.0)
    first = hvd.elastic.TensorFlowState([variable], step=0)
    first.sync()
    variable.assign(3.0)
    first.step = 5
    first.commit()

    start()
    variable.assign(0.0)
    FailsOnce.__module__ = hvd.elastic.TensorFlowState.__module__  # the same state, to its file
    FailsOnce.__qualname__ = "TensorFlowState"
    train = hvd.elastic.run(lambda state: (state.step, float(variable.numpy())))
    assert train(FailsOnce([variable], step=0)) == (5, 3.0)


def test_a_state_that_is_never_synced_does_not_count(hvd, rank, size, start):
    """As one that a program makes where it finds nothing of an earlier start."""
    hvd.elastic.ObjectState(best=0)
    first = hvd.elastic.ObjectState(step=0)
    first.sync()
    first.step = 5
    first.commit()

    start()
    again = hvd.elastic.ObjectState(step=0)
    again.sync()
    assert again.step == 5


def test_a_commit_before_the_first_sync_replaces_none(hvd, rank, size, start):
    first = hvd.elastic.ObjectState(step=0)
    first.sync()
    first.step = 5
    first.commit()

    start()
    state = hvd.elastic.ObjectState(step=0)
    state.commit()
    state.step = 1
    state.restore()
    assert state.step == 0
    state.sync()
    assert state.step == 5


def test_what_only_cloudpickle_can_store(hvd, rank, size, start, monkeypatch):
    """As `broadcast_object` does. Here it is made up."""
    stored = types.ModuleType("cloudpickle")
    stored.dumps = lambda obj, protocol: pickle.dumps(hide(obj), protocol)
    stored.dump = lambda obj, file, protocol: pickle.dump(hide(obj), file, protocol)
    monkeypatch.setitem(sys.modules, "cloudpickle", stored)
    first = hvd.elastic.ObjectState(step=rank, scale=lambda: None)
    first.sync()
    first.step = 5
    first.commit()

    start()
    state = hvd.elastic.ObjectState(step=0, scale=None)
    state.sync()
    assert (state.step, state.scale) == (5, len)


def hide(obj):
    """The object with a function that pickle can store in place of one that it cannot."""
    if isinstance(obj, (dict, tuple)):
        made = [(k, hide(v)) for k, v in obj.items()] if isinstance(obj, dict) else map(hide, obj)
        return type(obj)(made)
    return len if isinstance(obj, types.FunctionType) else obj


def test_each_group_of_ranks_has_its_own_file(hvd, rank, size, start, tmp_path, monkeypatch):
    """As with `init(comm=...)`: each has a rank 0."""
    for of_launcher in ("0", "1"):
        start()
        monkeypatch.setattr(states.launched, "rank", lambda number=of_launcher: int(number))
        state = hvd.elastic.ObjectState(step=0)
        state.sync()
        assert state.step == 0
        state.step = 5
        state.commit()
    assert len(list(tmp_path.iterdir())) == (2 if rank == 0 else 0)


def test_a_commit_of_another_model(hvd, rank, size, start):
    first = hvd.elastic.TensorFlowState([tf.Variable([1.0, 2.0])])
    first.sync()
    for others, words in [
        ([tf.Variable([1.0, 2.0, 3.0], name="w")], r"\(2,\), and 'w:0' has \(3,\)"),
        ([tf.Variable([1.0, 2.0]), tf.Variable(1.0)], "has 1 variables and this program 2"),
    ]:
        start()
        state = hvd.elastic.TensorFlowState(others)
        if rank == 0:
            with pytest.raises(ValueError, match=rf"{words}: .* Remove .*commit-0-"):
                state._load()


def test_variables_that_came_after_a_commit(hvd, rank, size):
    """As slots do of a layer that is no longer frozen. The last rank has none of them."""
    made = [tf.Variable([float(rank)])]

    class Grows(hvd.elastic.TensorFlowState):
        def _all_variables(self):
            return made

        _shared_variables = _all_variables

    state = Grows([])
    state.commit()
    made.insert(0, tf.Variable(7.0))
    made[1].assign([9.0])
    state.restore()
    assert [np.asarray(one).tolist() for one in made] == [7.0, [float(rank)]]


def test_a_state_made_in_the_function(hvd, rank, size):
    """The failed rank has not made it yet."""
    tries = []

    @hvd.elastic.run
    def train(outer):
        tries.append(1)
        if len(tries) == 1 and rank == size - 1:
            raise HorovodInternalError("tried")
        inner = hvd.elastic.ObjectState(step=rank)
        inner.sync()
        return inner.step

    assert train(hvd.elastic.ObjectState()) == 0
    assert len(tries) == 2


def test_rank_0_keeps_its_objects_in_a_sync(hvd, rank, size):
    history = [rank]
    state = hvd.elastic.ObjectState(history=history)
    state.sync()
    assert state.history == [0] and (state.history is history) == (rank == 0)
    history.append(5)
    state.restore()
    assert state.history == [0]


def test_a_graph_without_a_session(hvd):
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("x", initializer=1.0)
        with pytest.raises(ValueError, match="pass session="):
            hvd.elastic.TensorFlowState([variable])
