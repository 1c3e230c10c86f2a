# SPDX-License-Identifier: Apache-2.0
"""A mistake fails that call on every rank, with every rank's value. The job goes on."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from modes import v1

import hvd_tf as hvd
from hvd_tf._internal import native

RANKS = (3,)
IN_FULL = (2,)
HOSTS = "2x2"


@pytest.fixture(autouse=True)
def the_job_goes_on(size):
    yield
    assert hvd.allreduce(1, op=hvd.Sum, name="after").numpy() == size


def fails(error, call, *texts):
    """Checks that the call raises the error, and that it has all of `texts`.

    No time limit of the library ends such a call. So the ranks agree on its end, or it hangs.
    """
    with pytest.raises(error) as caught:
        call()
    for text in texts:
        assert text in str(caught.value), f"{text!r} is not in: {caught.value}"


def disagree(call, *texts):
    fails(tf.errors.FailedPreconditionError, call, *texts)


def fails_for_one(rank, size, error, call, name, *texts):
    """As `fails`, and that the others hear which rank it was."""
    who = [] if rank == size - 1 else [f"rank {size - 1}"]
    fails(error, call, f"'{name}'", *who, *texts)


def odd(rank, size, usual, unusual):
    """`unusual` on the last rank."""
    return unusual if rank == size - 1 else usual


# ---- ranks that disagree: FailedPrecondition everywhere ----------------------------------------


@pytest.mark.parametrize("verb", ["allreduce", "broadcast"])
def test_shapes(verb, rank, size):
    x = np.zeros(odd(rank, size, (2, 3), (2, 4)), np.float32)
    call = {"allreduce": hvd.allreduce, "broadcast": lambda x, name: hvd.broadcast(x, 0, name)}[
        verb
    ]
    disagree(lambda: call(x, name="shapes"), "shapes", "[2,3]", "[2,4]", f"rank {size - 1}")


def test_shapes_of_allgather(rank, size):
    x = np.zeros(odd(rank, size, (2, 3), (2, 4)), np.float32)
    disagree(lambda: hvd.allgather(x, name="rows"), "rows", "[?,3]", "[?,4]", f"rank {size - 1}")
    y = np.zeros(odd(rank, size, (2, 3), (2,)), np.float32)
    disagree(lambda: hvd.allgather(y, name="rows"), "rows", "[?,3]", "[?]")


@pytest.mark.parametrize("verb", ["allreduce", "allgather"])
def test_dtypes(verb, rank, size):
    x = np.zeros(3, odd(rank, size, np.float32, np.int64))
    disagree(lambda: getattr(hvd, verb)(x, name="dtypes"), "dtypes", "float32", "int64")


def test_reduce_ops(rank, size):
    op = odd(rank, size, hvd.Average, hvd.Max)
    disagree(lambda: hvd.allreduce(1.0, op=op, name="ops"), "ops", "Average", "Max")


def test_roots(rank, size):
    root = odd(rank, size, 0, 1)
    disagree(lambda: hvd.broadcast(1.0, root, name="roots"), "roots", "0", "1")


@pytest.mark.parametrize("scale", ["prescale_factor", "postscale_factor"])
def test_scales(scale, rank, size):
    factor = {scale: odd(rank, size, 0.5, 0.25)}
    disagree(lambda: hvd.allreduce(1.0, name="scales", **factor), "scales", "0.5", "0.25")


def test_compressions(rank, size):
    compression = odd(rank, size, hvd.Compression.none, hvd.Compression.fp16)
    call = lambda: hvd.allreduce([1.0], compression=compression, name="wires")  # noqa: E731
    disagree(call, "wires", "float16")


def test_verbs(rank, size):
    def call():
        if rank == size - 1:
            return hvd.allgather([1.0], name="verbs")
        return hvd.allreduce([1.0], name="verbs")

    disagree(call, "verbs", "allreduce", "allgather")


def test_group_sizes(rank, size):
    tensors = [np.float32([1.0])] * odd(rank, size, 2, 3)
    disagree(lambda: hvd.grouped_allreduce(tensors, name="group"), "group")


@pytest.mark.parametrize("mode", ["function", "session"])
def test_a_graph_tells_the_same(mode, rank, size):
    x = np.zeros(odd(rank, size, 2, 4), np.float32)

    good, texts = np.zeros(3, np.float32), ("graph", "[2]", "[4]", f"rank {size - 1}")
    if mode == "function":
        step = tf.function(
            lambda x: hvd.allreduce(x, name="graph"),
            input_signature=[tf.TensorSpec([None], tf.float32)],
        )
        step(good)
        disagree(lambda: step(x), *texts)
        return
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [None])
        reduced = hvd.allreduce(fed, name="graph")
        session.run(reduced, {fed: good})
        disagree(lambda: session.run(reduced, {fed: x}), *texts)


# ---- one rank's own mistake: its code everywhere -----------------------------------------------


def test_gathering_a_scalar_on_all_ranks():
    disagree(lambda: hvd.allgather(1.0, name="scalar"), "scalar", "reshape")


def test_gathering_a_scalar_on_one_rank(rank, size):
    x = odd(rank, size, [1.0], 1.0)
    call = lambda: hvd.allgather(x, name="scalar")  # noqa: E731
    fails_for_one(rank, size, tf.errors.FailedPreconditionError, call, "scalar", "reshape")


def test_a_root_that_does_not_exist(rank, size):
    call = lambda: hvd.broadcast(1.0, odd(rank, size, 0, 99), name="root")  # noqa: E731
    fails_for_one(rank, size, tf.errors.InvalidArgumentError, call, "root", "99")


def test_a_scale_that_is_no_number(rank, size):
    text = odd(rank, size, "1", "a half")

    def call():
        return native.ops.horovod_allreduce(
            tensor=[1.0], reduce_op=hvd.Sum, exact_prescale=text, tensor_name="text"
        )

    error = tf.errors.InvalidArgumentError
    fails_for_one(rank, size, error, call, "text", "a half", "prescale_factor")


def test_a_reduce_op_that_does_not_exist(rank, size):
    def call():
        return native.ops.horovod_allreduce(
            tensor=[1.0], reduce_op=odd(rank, size, 1, 17), tensor_name="unknown_op"
        )

    fails_for_one(rank, size, tf.errors.InvalidArgumentError, call, "unknown_op", "reduce_op 17")


def test_broadcasting_a_variable_without_a_value(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        for use_resource in (True, False):
            name = f"v{int(use_resource)}"
            variable = v1.get_variable(name, initializer=1.0, use_resource=use_resource)
            synced = hvd.broadcast_([variable], 0, name=f"sync_{name}")
            if rank != size - 1:
                session.run(variable.initializer)
            fails_for_one(
                rank,
                size,
                tf.errors.FailedPreconditionError,
                lambda synced=synced: session.run(synced),
                f"sync_{name}",
                "initialise",
            )


def test_an_unknown_process_set():
    process_set = hvd.ProcessSet([0])
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(1.0, process_set=process_set)
    process_set.process_set_id = 12
    fails(
        tf.errors.InvalidArgumentError,
        lambda: hvd.allreduce(1.0, process_set=process_set),
        "process set 12",
    )
    with pytest.raises(ValueError, match="process set 12"):
        process_set.size()


# ---- a step that is aborted on one rank --------------------------------------------------------


class LostSteps:
    """Steps that the last rank loses. The peers come to their collectives only after that."""

    def __init__(self, rank, size, flags):
        self._rank, self._is_last, self._culprit = rank, rank == size - 1, f"rank {size - 1}"
        self._flags = flags
        self._count = 0
        self._is_lost = False  # the step that runs

    def waited(self, x):
        """Returns x. In a lost step the peers have it once the last rank has caught its error."""

        def wait(value):
            if self._is_lost and not self._is_last:
                self._flags.wait(self._count)
            return value

        y = tf.numpy_function(wait, [x], x.dtype, stateful=False)
        y.set_shape(x.shape)
        return y

    def fail(self, error, call, *texts):
        """The last rank's own error, and for the others an error that names it."""
        self._count += 1
        self._is_lost = True
        if self._is_last:
            fails(error, call, *texts)
            self._flags.raise_(self._count)
            # A peer's `late` of the lost step must not meet that of this rank's next step.
            for peer in range(self._rank):
                self._flags.wait(f"{self._count}-{peer}")
        else:
            fails(tf.errors.OpError, call, self._culprit, *texts)
            self._flags.raise_(f"{self._count}-{self._rank}")
        self._is_lost = False

    def fail_check(self, call):
        self.fail(tf.errors.InvalidArgumentError, call, "poison")


def two_reductions(x):
    """The second of a checked value. The check mostly fails while `early` waits for the peers.

    An op whose inputs are there runs even if another op of its step has failed. So whichever of the
    two is first, the rank tells of `early`.
    """
    early = hvd.allreduce(x, op=hvd.Sum, name="early")
    checked = tf.debugging.check_numerics(in_a_while(x), "poison")
    return early, hvd.allreduce(checked, op=hvd.Sum, name="late")


def in_a_while(x):
    y = tf.numpy_function(lambda value: time.sleep(0.1) or value, [x], x.dtype, stateful=False)
    y.set_shape(x.shape)
    return y


def test_a_failing_op_of_a_function(rank, size, flags):
    lost = LostSteps(rank, size, flags)
    step = tf.function(lambda x: two_reductions(lost.waited(x)))
    bad = tf.constant([odd(rank, size, 1.0, np.nan)])
    for _ in range(3):
        np.testing.assert_array_equal(step(tf.constant([1.0])), [[size], [size]])
        lost.fail_check(lambda: step(bad))


def test_a_failing_op_of_a_session(rank, size, flags):
    lost = LostSteps(rank, size, flags)
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [1])
        step = two_reductions(lost.waited(x))
        bad = [odd(rank, size, 1.0, np.nan)]
        for _ in range(3):
            assert session.run(step, {x: [1.0]}) == ([size], [size])
            lost.fail_check(lambda: session.run(step, {x: bad}))


def test_the_end_of_one_ranks_input(rank, size, flags):
    lost = LostSteps(rank, size, flags)
    with tf.Graph().as_default(), v1.Session() as session:
        count = odd(rank, size, 4, 3)
        batches = v1.data.make_one_shot_iterator(tf.data.Dataset.range(count))
        # Independent of the input, so that it is under way when the input ends.
        values = lost.waited(tf.random.uniform([3]))
        other = hvd.allreduce(values, name="other")
        with tf.control_dependencies([in_a_while(values)]):
            batch = tf.cast(batches.get_next(), tf.float32)
        total = hvd.allreduce(batch, op=hvd.Sum, name="total")
        for step in range(3):
            assert session.run([total, other])[0] == size * step
        lost.fail(tf.errors.OutOfRangeError, lambda: session.run([total, other]))


def test_an_aborted_step_leaves_other_steps_alone(rank, size, flags):
    lost = LostSteps(rank, size, flags)
    done, sums = [], []

    def train():
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [])
            totals = [hvd.allreduce(x + i, op=hvd.Sum, name=f"b{i}") for i in range(20)]
            over = v1.placeholder(tf.int32, [])
            all_over = hvd.allreduce(over, op=hvd.Min, name="over")
            while not session.run(all_over, {over: len(done)}):
                sums.append(sum(session.run(totals, {x: len(sums)})))
                time.sleep(0.01)  # two cores for up to four ranks

    def lose_steps(trainer):
        with tf.Graph().as_default(), v1.Session() as session:
            x = v1.placeholder(tf.float32, [1])
            waited = lost.waited(x)
            waiting = [hvd.allreduce(waited + i, op=hvd.Sum, name=f"a{i}") for i in range(20)]
            step = [*waiting, *two_reductions(waited)]
            bad = [odd(rank, size, 1.0, np.nan)]
            for _ in range(3):
                assert sum(session.run(step, {x: [1.0]})) == size * (sum(range(20)) + 22)
                before = len(sums)
                lost.fail_check(lambda: session.run(step, {x: bad}))
                # The first of them may have begun before the abort.
                while len(sums) < before + 2 and not trainer.done():
                    time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        trainer = pool.submit(train)
        try:
            lose_steps(trainer)
        finally:
            done.append(True)
        trainer.result()  # raises what ended the thread
    assert len(sums) > 3
    assert sums == [size * sum(step + i for i in range(20)) for step in range(len(sums))]


def test_a_step_that_is_cancelled_from_outside(rank, size):
    # As session.close() and tf.train.Coordinator do: no error of the step to tell.
    from tensorflow.python.eager import cancellation

    manager = cancellation.CancellationManager()
    begun = threading.Event()

    def begin(value):
        begun.set()
        return value

    @tf.function(autograph=False)
    def wait(x):
        x = tf.ensure_shape(tf.numpy_function(np.negative, [x], x.dtype), [])
        return hvd.allreduce(x, name="cancelled"), tf.numpy_function(begin, [x], x.dtype)

    def cancel():
        begun.wait()
        time.sleep(0.1)  # the collective mostly waits by then
        manager.start_cancel()

    wait(tf.constant(1.0))
    if rank == size - 1:
        cancellable = manager.get_cancelable_function(wait.get_concrete_function(tf.constant(1.0)))
        begun.clear()
        with ThreadPoolExecutor(1) as pool:
            cancelled = pool.submit(cancel)
            fails(tf.errors.CancelledError, lambda: cancellable(tf.constant(1.0)))
            cancelled.result()
    # Reports come in order: behind this one the leader knows of the abort.
    hvd.allreduce(1.0, name="heard")
    if rank != size - 1:
        fails(tf.errors.OpError, lambda: wait(tf.constant(1.0)), f"rank {size - 1}")
