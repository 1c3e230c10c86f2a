# SPDX-License-Identifier: Apache-2.0
"""Elastic training within a running job: commit, restore, and a new start of the runtime."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf import keras as hvd_keras
from hvd_tf._internal.causes import Cause, Kind, caused
from hvd_tf.elastic import running
from hvd_tf.exceptions import HorovodInternalError, HostsUpdatedInterrupt

RANKS = (2,)
IN_FULL = (3,)

keras = tf.keras


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


def test_variables(hvd, rank, size):
    variable = tf.Variable([float(rank), 2.0])
    state = hvd.elastic.TensorFlowState([variable], step=rank)
    variable.assign([9.0, 9.0])
    state.restore()
    assert variable.numpy().tolist() == [rank, 2.0] and state.step == rank
    state.sync()
    assert variable.numpy().tolist() == [0.0, 2.0] and state.step == 0


def test_variables_of_a_session(hvd, rank, size):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("x", initializer=[float(rank)])
        add = variable.assign_add([1.0])
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=0)
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


# --- Keras ---------------------------------------------------------------------


def make_model(seed, passes=1):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    distributed = hvd_keras.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
    model.compile(distributed, "mse")
    return model


def fit(model, state, rank, fail_at=None, epochs=3):
    """fail_at: the number of the training batch, from 0, in which this rank fails."""
    rng = np.random.default_rng([17, rank])
    x = rng.standard_normal((16, 3)).astype(np.float32)
    y = rng.standard_normal((16, 1)).astype(np.float32)
    done = []

    class Fail(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            done.append(batch)
            if len(done) - 1 == fail_at:
                raise HorovodInternalError

    elastic = hvd_keras.elastic

    @elastic.run
    def train(state):
        used = [
            elastic.UpdateEpochStateCallback(state),
            elastic.UpdateBatchStateCallback(state),
            elastic.CommitStateCallback(state, batches_per_commit=100),
            Fail(),
        ]
        arguments = {"batch_size": 4, "shuffle": False, "verbose": 0, "callbacks": used}
        model.fit(x, y, epochs=epochs, initial_epoch=state.epoch, **arguments)

    train(state)
    return [variable.numpy() for variable in model.trainable_variables]


# With several passes they reduce in batches 1, 3, 5, 7 and so on.
@pytest.mark.parametrize(("fails_at", "passes"), [(6, 1), (6, 2), (7, 2)])
def test_fit_goes_on_as_if_nothing_had_been(hvd, rank, size, fails_at, passes):
    ends = []
    for fail_at in (None, fails_at if rank == size - 1 else None):
        model = make_model(seed=rank, passes=passes)
        state = hvd_keras.elastic.KerasState(model, epoch=0, batch=0)
        ends.append(fit(model, state, rank, fail_at))
        assert (state.epoch, state.batch) == (3, 0)
    # The first model began as that of rank 0, and so did the second.
    for got, expected in zip(*ends):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_batches_of_an_epoch_that_went_on_count_together(hvd):
    """Else a second failure would repeat those before the first one."""
    state = hvd.elastic.ObjectState(batch=0)
    state.batch = 3
    counted = hvd_keras.elastic.UpdateBatchStateCallback(state)
    seen = []
    counted.on_train_begin()
    for epoch in range(2):
        for batch in range(2):
            counted.on_train_batch_end(batch)
            seen.append(state.batch)
        counted.on_epoch_end(epoch)
        seen.append(state.batch)
    assert seen == [4, 5, 0, 1, 2, 0]


def test_a_restored_state_begins_with_the_first_pass(hvd, rank, size):
    """Also where ranks stand at different passes: each has sums of its own then."""
    model = make_model(seed=0, passes=2)
    x, y = np.ones((4, 3), np.float32), np.full((4, 1), rank, np.float32)
    state = hvd_keras.elastic.KerasState(model)
    for again in (state.restore, state.sync):
        before = model.get_weights()
        if rank == 0:
            model.train_on_batch(x, y)
        again()
        model.train_on_batch(x, y)
        for got, expected in zip(model.get_weights(), before):
            np.testing.assert_array_equal(got, expected)
        model.train_on_batch(x, y)
        everyones = hvd.allgather_object(model.get_weights())
        assert any((got != old).any() for got, old in zip(everyones[0], before))
        for theirs in everyones:
            assert all((got == other).all() for got, other in zip(theirs, everyones[0]))
        state.commit()


def test_a_model_without_variables_is_refused(hvd):
    with pytest.raises(ValueError, match="build it, or call it once"):
        hvd_keras.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))


# --- What each rank counts, where one of them has failed before it came as far as the others ------


def first_time_on_the_last(hvd, tries):
    tries.append(1)
    if len(tries) == 1 and hvd.rank() == hvd.size() - 1:
        raise HorovodInternalError("an input that could not be opened this time")


def test_data_made_before_the_function(hvd, rank, size):
    unknown = tf.data.Dataset.range(3 + rank).filter(lambda x: x >= 0)
    dataset, tries = hvd.data.equal_steps(unknown), []

    @hvd.elastic.run
    def train(state):
        first_time_on_the_last(hvd, tries)
        return [[total(hvd, one.numpy()) for one in dataset] for _ in range(2)]

    assert train(hvd.elastic.ObjectState()) == [[0.0, size, 2.0 * size]] * 2


@pytest.mark.skipif(
    not hasattr(keras.optimizers.Adam, "compute_gradients"), reason="Keras 3 has no minimize"
)
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_passes_of_an_optimizer_that_is_in_no_state(hvd, rank, size, mode):
    weight, tries = tf.Variable(1.0), []
    inner = keras.optimizers.legacy.SGD(0.1)
    optimizer = hvd_keras.DistributedOptimizer(inner, backward_passes_per_step=2)

    def step():
        optimizer.minimize(lambda: weight * float(1 + rank), [weight])

    step = tf.function(step) if mode == "function" else step

    @hvd.elastic.run
    def train(state):
        first_time_on_the_last(hvd, tries)
        for _ in range(3):
            step()
            total(hvd, 1)

    train(hvd.elastic.TensorFlowState([weight]))
    # Two of three passes make a step.
    np.testing.assert_allclose(weight.numpy(), 1 - 0.1 * (1 + size) / 2 * 2, rtol=1e-6)


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_passes_of_a_session(hvd, rank, size, op):
    tries = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=1.0)
        inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        optimizer = hvd.DistributedOptimizer(inner, op=getattr(hvd, op), backward_passes_per_step=2)
        step = optimizer.minimize(weight * 3.0, var_list=[weight])
        together = hvd.allreduce(tf.constant(1.0), name="together")
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.local_variables_initializer())

        @hvd.elastic.run
        def train(state):
            first_time_on_the_last(hvd, tries)
            for _ in range(2):
                session.run(step)
                session.run(together)

        train(hvd.elastic.TensorFlowState([weight], session))
        # Equal gradients count once with Adasum; the default is a sum over the passes.
        np.testing.assert_allclose(session.run(weight), 1 - 0.1 * 3 * 2, rtol=1e-6)
