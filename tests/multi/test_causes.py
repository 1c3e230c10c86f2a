# SPDX-License-Identifier: Apache-2.0
"""A failure's cause reaches Python wherever TensorFlow takes it, whatever the messages say."""

from __future__ import annotations

import contextlib
import threading

import pytest
import tensorflow as tf

import hvd_tf as hvd
from hvd_tf._internal import blame
from hvd_tf._internal.causes import Kind
from hvd_tf.data import agreement

RANKS = (2,)

v1 = tf.compat.v1


def bad_call(name):
    """Rank 1 names a root that does not exist."""
    return hvd.broadcast(tf.ones([2]), root_rank=7 * hvd.rank(), name=name)


def in_session(make, name):
    with tf.Graph().as_default():
        fetched = make(name)
        with v1.Session() as session:
            session.run(fetched)


def in_monitored_session(name):
    with tf.Graph().as_default():
        fetched = bad_call(name)
        v1.train.get_or_create_global_step()
        with v1.train.MonitoredTrainingSession() as session:
            session.run(fetched)


def mapped(name):
    return tf.data.Dataset.range(1).map(lambda _: bad_call(name))


def from_generator(name):
    def batches():
        yield bad_call(name).numpy()

    spec = tf.TensorSpec([2], tf.float32)
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def of_variables(name):
    variables = [tf.Variable(tf.ones([2]), name=name) for _ in range(3)]
    hvd.broadcast_variables(variables, root_rank=7 * hvd.rank())


PLACES = {
    "eager": bad_call,
    "function": tf.function(bad_call, autograph=False),
    "cond": tf.function(
        lambda name: tf.cond(tf.size(name) > 0, lambda: bad_call("cond"), lambda: tf.ones([2])),
        autograph=False,
    ),
    "session": lambda name: in_session(bad_call, name),
    "monitored": in_monitored_session,
    "map": lambda name: list(mapped(name)),
    "generator": lambda name: list(from_generator(name)),
    "session_map": lambda name: in_session(
        lambda name: v1.data.make_one_shot_iterator(mapped(name)).get_next(), name
    ),
    "numpy_function": lambda name: tf.numpy_function(lambda: bad_call(name), [], tf.float32),
    "variables": of_variables,
}


def reword(error):
    """The exception and those before it, with other words."""
    while error is not None:
        error.args = ("words",)
        if isinstance(error, tf.errors.OpError):
            error._message = "words"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("place", PLACES)
def test_a_call_that_is_bad_on_rank_1(place, rank, size):
    with pytest.raises(tf.errors.OpError) as caught:
        PLACES[place](f"{place}_call")
    for reworded in (False, True):
        if reworded:
            reword(caught.value)
            assert "root" not in str(caught.value)
        cause = blame.find_cause(caught.value)
        if rank == 0:
            assert (cause.kind, cause.rank) == (Kind.CALL_FAILED, 1) and blame.blames_peer(cause)
        else:
            assert not blame.blames_peer(cause)
    assert hvd.allreduce(1, op=hvd.Sum, name="after").numpy() == size
    # What has happened does not stick to later errors.
    assert blame.find_cause(tf.errors.UnknownError(None, None, "another")) is None


def test_a_step_that_rank_1_aborts(rank, size):
    def hear():
        """Reports come in order: behind this one the leader knows of the abort."""
        hvd.allreduce(1.0, name="heard")

    def later(x):
        if rank == 1:
            raise ValueError("NaN")
        hear()
        return x

    @tf.function(autograph=False)
    def step():
        # Rank 1 makes the call in the step that is aborted. Rank 0 makes it when that is known.
        after = tf.numpy_function(later, [tf.ones([2])], tf.float32)
        x = tf.ensure_shape(after, [2]) if rank == 0 else tf.ones([2])
        return hvd.allreduce(x, name="late"), after

    with pytest.raises(tf.errors.OpError) as caught:
        step()
    if rank == 1:
        hear()
    reword(caught.value)
    cause = blame.find_cause(caught.value)
    if rank == 0:
        assert (cause.kind, cause.rank, cause.tensor) == (Kind.STEP_ABORTED, 1, "late")
    else:
        assert cause is None
    assert hvd.allreduce(1, op=hvd.Sum, name="after").numpy() == size


def test_ranks_that_differ(rank):
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        hvd.allreduce(tf.ones([2 + rank]), name="differs")
    reword(caught.value)
    cause = blame.find_cause(caught.value)
    assert (cause.kind, cause.rank, cause.tensor) == (Kind.RANKS_DIFFER, -1, "differs")
    assert cause.message.startswith("The ranks disagree")
    assert not blame.blames_peer(cause)


def test_a_rank_that_leaves_its_dataset(rank, size, monkeypatch):
    """In other words than the library's: what counts is that it says so."""
    gather = agreement.ops.allgather

    def reworded(*args, **kwargs):
        try:
            return gather(*args, **kwargs)
        except tf.errors.OpError as error:
            reword(error)
            raise

    monkeypatch.setattr(agreement.ops, "allgather", reworded)
    records = tf.data.Dataset.range(40 * size).filter(lambda x: True)
    dataset = hvd.data.shard(records)
    iterator = iter(dataset)
    if rank == 0:
        next(iterator)
        del iterator
    else:
        with pytest.raises(tf.errors.OpError, match="no next batch: ") as caught:
            list(iterator)
        assert "Traceback" not in str(caught.value)
        cause = blame.find_cause(caught.value)
        assert (cause.kind, cause.rank) == (Kind.SCOPE_ENDED, 0) and blame.blames_peer(cause)
    hvd.allgather_object(None, name="all_have_left")
    monkeypatch.undo()
    assert len(list(dataset)) == 40
    assert blame.find_cause(tf.errors.UnknownError(None, None, "another")) is None


@pytest.mark.parametrize("later_call", [True, False])
def test_an_error_of_its_own_after_a_dataset_that_has_ended(later_call, rank, size):
    """What rank 1 has read ahead has failed, mostly for nobody. Its later error is another one."""
    records = tf.data.Dataset.range(40 * size).filter(lambda x: True)
    iterator = iter(hvd.data.shard(records))
    next(iterator)
    if rank == 0:
        del iterator
    elif rank == 1:
        agreeing = [each for each in threading.enumerate() if each.name == "hvd-data"]
        with contextlib.suppress(tf.errors.OpError):  # where rank 0 left before the second batch
            next(iterator)
        for each in agreeing:
            each.join(30)
            assert not each.is_alive()
    if later_call:
        hvd.allgather_object(None, name="all_have_ended")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.reshape(tf.ones([3]), [2])
    cause = blame.find_cause(caught.value)
    hvd.allgather_object(None, name="all_have_looked")
    assert cause is None
