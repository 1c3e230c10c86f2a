# SPDX-License-Identifier: Apache-2.0
"""HVD_CHECK_NUMERICS=1: a NaN or an infinity on one rank fails the step on all, which name it."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from modes import MODES, run

import hvd_tf
from hvd_tf._internal.blame import blames_peer, find_cause
from hvd_tf._internal.causes import Kind

OWN_INIT = True
RANKS = (3,)
GPU = (3,)

pytestmark = pytest.mark.usefixtures("checking")

v1 = tf.compat.v1
CULPRIT = 1


@pytest.fixture(scope="module", autouse=True)
def hvd():
    """Not initialised: each test begins and ends that way."""
    return hvd_tf


@pytest.fixture
def checking(monkeypatch, world):
    """The sets of the culprit alone, and of the culprit and rank 2."""
    monkeypatch.setenv("HVD_CHECK_NUMERICS", "1")
    sets = [hvd_tf.ProcessSet([CULPRIT]), hvd_tf.ProcessSet([CULPRIT, 2])]
    hvd_tf.init(process_sets=sets)
    return sets


def ones(count: int, bad: float = np.nan, dtype: str = "float32") -> np.ndarray:
    """On the culprit one element is another."""
    array = np.ones(count, dtype)
    if hvd_tf.rank() == CULPRIT:
        array[count // 2] = bad
    return array


def check_error(error: BaseException, tensor: str, where: str = "") -> None:
    assert isinstance(error, tf.errors.InvalidArgumentError)
    words = f"rank {CULPRIT} has a NaN or an infinity in '{tensor}'{where}; HVD_CHECK_NUMERICS=1"
    assert words in str(error)
    cause = find_cause(error)
    assert cause is not None
    assert (cause.kind, cause.rank, cause.tensor) == (Kind.NOT_FINITE, CULPRIT, tensor)
    assert blames_peer(cause) == (hvd_tf.rank() != CULPRIT)


def check_all_is_well() -> None:
    total = hvd_tf.allreduce(np.float32(1), op=hvd_tf.Sum, name="after")
    assert total.numpy() == hvd_tf.size()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 40, 1_000_000])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_bad_value_fails_the_call_on_every_rank(mode, count, bad):
    def reduce(x):
        return hvd_tf.allreduce(x, op=hvd_tf.Sum, name="bad")

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(mode, reduce, ones(count, bad))
    check_error(caught.value, "bad")
    # The same name and the same step go on with good values.
    np.testing.assert_array_equal(run(mode, reduce, np.ones(count, np.float32)), hvd_tf.size())


@pytest.mark.parametrize("mode", MODES)
def test_an_allgather_is_checked(mode):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(mode, lambda x: hvd_tf.allgather(x, name="rows"), ones(5, np.inf, "float64"))
    check_error(caught.value, "rows")
    check_all_is_well()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("of_rank", [0, 1, 2])
@pytest.mark.parametrize(
    ("bad", "arguments"),
    [
        (np.nan, {}),
        # Finite, but not on the wire.
        (1e5, {"compression": hvd_tf.Compression.fp16}),
        (1e5, {"prescale_factor": 1e35}),
    ],
)
def test_a_reducescatter_fails_on_every_rank(mode, of_rank, bad, arguments):
    """Whoever gets the row: to a rank that gets others the culprit sends good ones alone."""
    rows = np.ones((3, 5), np.float32)
    if hvd_tf.rank() == CULPRIT:
        rows[of_rank, 2] = bad
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(mode, lambda x: hvd_tf.reducescatter(x, name="rows", **arguments), rows)
    check_error(caught.value, "rows")
    check_all_is_well()


def test_an_input_of_a_group_is_numbered():
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        hvd_tf.grouped_allreduce([tf.ones([7]), ones(3), tf.ones([2])], name="group")
    check_error(caught.value, "group", " (input 1 of 3, from 0)")
    check_all_is_well()


def test_what_only_the_wire_cannot_hold_is_found():
    big = tf.fill([4], 1e6 if hvd_tf.rank() == CULPRIT else 1.0)
    assert hvd_tf.allreduce(big, op=hvd_tf.Max, name="whole").numpy().max() == 1e6
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        hvd_tf.allreduce(big, op=hvd_tf.Max, name="half", compression=hvd_tf.Compression.fp16)
    check_error(caught.value, "half")


def test_a_training_step_changes_no_weight():
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [4])
        dense = v1.get_variable("dense", initializer=np.ones(4, np.float32))
        table = v1.get_variable("table", initializer=np.ones((6, 4), np.float32))
        loss = tf.reduce_sum(dense * fed) + tf.reduce_sum(tf.gather(table, [1, 3]) * fed)
        optimizer = hvd_tf.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.5))
        update = optimizer.minimize(loss)
        session.run(v1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            session.run(update, {fed: ones(4)})
        cause = find_cause(caught.value)
        assert cause is not None and (cause.kind, cause.rank) == (Kind.NOT_FINITE, CULPRIT)
        # Both gradients are bad, so neither variable has changed.
        for value in session.run([dense, table]):
            np.testing.assert_array_equal(value, np.ones_like(value))
        session.run(update, {fed: np.ones(4, np.float32)})
        np.testing.assert_array_equal(session.run(dense), np.full(4, 0.5))


@pytest.mark.parametrize("mode", ["function", "session"])
def test_a_rank_that_only_hears_of_the_aborted_step_says_the_same(mode, checking):
    """Rank 0 has no part in the call. So it hears of nothing but the step that a rank aborts."""
    _, pair = checking

    def after_a_moment(x, _):
        time.sleep(0.1)  # mostly the later call waits by then
        return x

    def step(x, y):
        # It has another shape, so that it is copied back from where the later call needs it.
        y = tf.reshape(y, [2, 1])
        if hvd_tf.rank() == 0:
            return hvd_tf.allreduce(y, name="later")
        # The culprit makes the later call in the step that is aborted. Rank 2 never makes it.
        with tf.device("CPU:0"):
            x = tf.numpy_function(after_a_moment, [x, tf.identity(y)], tf.float32)
        x = tf.ensure_shape(x, [3])
        bad = hvd_tf.allreduce(x, op=hvd_tf.Sum, name="bad", process_set=pair)
        with tf.control_dependencies([] if hvd_tf.rank() == CULPRIT else [bad]):
            later = hvd_tf.allreduce(y, name="later")
        return tf.reduce_sum(bad) + tf.reduce_sum(later)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(mode, step, ones(3), np.ones(2, np.float32))
    check_error(caught.value, "bad")
    check_all_is_well()


def test_a_set_of_one_rank_is_checked(checking):
    alone, _ = checking
    if hvd_tf.rank() != CULPRIT:
        return
    for function in (hvd_tf.allreduce, hvd_tf.allgather):
        assert function(tf.ones([3]), name="alone", process_set=alone).numpy().sum() == 3
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            function(ones(3), name="alone", process_set=alone)
        words = f"rank {CULPRIT} has a NaN or an infinity in 'alone'; HVD_CHECK_NUMERICS=1"
        assert words in str(caught.value)


def test_small_ones_that_share_a_kernel(checking):
    """In a graph. The error has the one that is bad, in a set of one rank too."""
    alone, _ = checking
    for process_set in (hvd_tf.global_process_set, alone):
        if not process_set.included():
            continue

        @tf.function
        def step(good, bad, process_set=process_set):
            return [
                hvd_tf.allreduce(x, op=hvd_tf.Sum, name=name, process_set=process_set)
                for name, x in (("shared.good", good), ("shared.bad", bad))
            ]

        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            step(tf.ones([4]), ones(4))
        words = f"rank {CULPRIT} has a NaN or an infinity in 'shared.bad'; HVD_CHECK_NUMERICS=1"
        assert words in str(caught.value)
        for value in step(tf.ones([4]), tf.ones([4])):
            np.testing.assert_array_equal(value, np.full(4, process_set.size()))


@pytest.mark.parametrize("bundling", [0, CULPRIT, 2])
def test_one_that_shares_a_kernel_waits_for_a_call_that_never_comes(bundling):
    """The other ranks make it behind the call that fails."""

    @tf.function
    def step(x, y):
        bad = hvd_tf.allreduce(x, op=hvd_tf.Sum, name="shared.bad")
        if hvd_tf.rank() != bundling:
            y = y + tf.reduce_sum(bad)
        return bad, hvd_tf.allreduce(y, op=hvd_tf.Sum, name="shared.later")

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        step(ones(3), tf.ones([2]))
    check_error(caught.value, "shared.bad")
    check_all_is_well()


def test_what_has_no_such_value_passes():
    largest = np.finfo(np.float32).max
    got = hvd_tf.allreduce(ones(9, largest), op=hvd_tf.Max, name="largest")
    assert got.numpy()[4] == largest
    # All bits set: as a float this would be NaN.
    got = hvd_tf.allreduce(tf.fill([9], -1), op=hvd_tf.Sum, name="integers")
    np.testing.assert_array_equal(got, -hvd_tf.size())
    # A broadcast is not checked: a variable may hold infinities from the start.
    got = hvd_tf.broadcast(ones(9, np.inf), root_rank=CULPRIT, name="values")
    assert np.isinf(got.numpy()[4])


@pytest.mark.usefixtures("world")
def test_without_the_knob_the_value_travels(monkeypatch):
    hvd_tf.shutdown()
    monkeypatch.delenv("HVD_CHECK_NUMERICS")
    hvd_tf.init()
    got = hvd_tf.allreduce(ones(9), op=hvd_tf.Sum, name="unchecked").numpy()
    assert np.isnan(got[4]) and got[0] == hvd_tf.size()
