# SPDX-License-Identifier: Apache-2.0
"""Eager calls whose names and scale factors are ever new: memory stays flat, all else is as usual.

See hvd_tf/_internal/eager_words.py. The calls of most tests have none of them as attributes.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict

import numpy as np
import pytest
import tensorflow as tf
from memory import grown_bytes, malloc_bytes

import hvd_tf as hvd
from hvd_tf._internal import eager_words, native

ALONE = True
RANKS = (1, 2)
TIMEOUT_S = 300


@pytest.fixture
def in_places(monkeypatch):
    """All words go into the library's table."""
    monkeypatch.setattr(eager_words, "_as_attributes", set())
    monkeypatch.setattr(eager_words, "_uses", OrderedDict())
    monkeypatch.setattr(eager_words, "_MOST_AS_ATTRIBUTES", 0)
    monkeypatch.setattr(eager_words, "_MOST_REPEATED", 0)


def free_place():
    number = native.lib.hvd_put_eager_words(b"x", 1, b"1", b"1")
    native.lib.hvd_drop_eager_words(number)
    return number % 64


@pytest.mark.parametrize("what", ["name", "scale", "object", "broadcast", "gradient"])
def test_memory_stays_flat(what, monkeypatch):
    # The first words are attributes, and the last ones are remembered. So few are as good as 1000.
    monkeypatch.setattr(eager_words, "_as_attributes", set())
    monkeypatch.setattr(eager_words, "_uses", OrderedDict())
    monkeypatch.setattr(eager_words, "_MOST_AS_ATTRIBUTES", 10)
    monkeypatch.setattr(eager_words, "_REMEMBERED", 10)
    x = tf.constant([1.0])

    def gradient(i):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, name=f"of {i}")
        tape.gradient(y, x)

    call = {
        "name": lambda i: hvd.allreduce(x, name=f"loss_{i}"),
        "scale": lambda i: hvd.allreduce(x, prescale_factor=1 / (i + 2)),
        "object": lambda i: hvd.allgather_object(i, name=f"object_{i}"),
        "broadcast": lambda i: hvd.broadcast(x, 0, name=f"root_{i}"),
        "gradient": gradient,
    }[what]
    first, calls = 200, 1500
    for i in range(first):
        call(i)
    gc.collect()
    before, blocks_before = malloc_bytes(), sys.getallocatedblocks()
    for i in range(first, first + calls):
        call(i)
    gc.collect()
    # A kernel that TensorFlow keeps is more than 40,000.
    assert grown_bytes(before) / calls < 4000
    assert not eager_words._kept
    if what == "name":
        # Python's blocks, such as of the words. TensorFlow 2.15 keeps one for each operation.
        assert (sys.getallocatedblocks() - blocks_before) / calls < 2


def test_words_that_come_again_are_attributes(monkeypatch, size):
    monkeypatch.setattr(eager_words, "_as_attributes", set())
    monkeypatch.setattr(eager_words, "_uses", OrderedDict())
    monkeypatch.setattr(eager_words, "_MOST_AS_ATTRIBUTES", 0)
    monkeypatch.setattr(eager_words, "_MOST_REPEATED", 2)

    def places_used(name):
        before = native.lib.hvd_put_eager_words(b"x", 1, b"1", b"1")
        native.lib.hvd_drop_eager_words(before)
        assert hvd.allreduce(1.0, op=hvd.Sum, name=name).numpy() == size
        after = native.lib.hvd_put_eager_words(b"x", 1, b"1", b"1")
        native.lib.hvd_drop_eager_words(after)
        return after // 64 - before // 64 - 1

    names = [f"gradient {i}" for i in range(3)]
    used = [[places_used(name) for name in names] for _ in range(4)]
    # From their third use on. So many may, but no more.
    assert used == [[1, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 1]]
    # Meanwhile there may be other names, but not too many.
    monkeypatch.setattr(eager_words, "_MOST_REPEATED", 3)
    assert places_used(names[2]) == 0
    monkeypatch.setattr(eager_words, "_MOST_REPEATED", 4)
    monkeypatch.setattr(eager_words, "_REMEMBERED", 10)
    for i in range(4):
        assert places_used("seldom") == 1
        for other in range(10):
            places_used(f"other {i} {other}")
    assert len(eager_words._uses) == 10


def test_results_of_all_verbs(in_places, rank, size):
    x = np.arange(1.0, 5.0, dtype=np.float32) * (rank + 1)
    total = sum(range(1, size + 1))
    ones = np.arange(1.0, 5.0, dtype=np.float32)
    for i in range(3):
        name = f"call {i}"
        scaled = hvd.allreduce(
            x, op=hvd.Sum, name=name, prescale_factor=0.5 + i, postscale_factor=4.0
        )
        np.testing.assert_allclose(scaled, ones * total * (0.5 + i) * 4.0)
        for part in hvd.grouped_allreduce([x, x], op=hvd.Sum, name=name):
            np.testing.assert_allclose(part, ones * total)
        slices = tf.IndexedSlices(tf.constant(x[:, None]), tf.range(4), tf.constant([4, 1]))
        sparse = hvd.allreduce(slices, op=hvd.Sum, name=name)
        np.testing.assert_allclose(sparse.values[:, 0], ones * total)
        gathered = np.concatenate([ones * (r + 1) for r in range(size)])
        np.testing.assert_allclose(hvd.allgather(x, name=name), gathered)
        for part in hvd.grouped_allgather([x, x], name=name):
            np.testing.assert_allclose(part, gathered)
        np.testing.assert_allclose(hvd.broadcast(x, size - 1, name=name), ones * size)
        mine = np.array_split(ones * total * 0.25, size)[rank]
        np.testing.assert_allclose(
            hvd.reducescatter(x, op=hvd.Sum, name=name, prescale_factor=0.25), mine
        )
        splits = [4 if to == 0 else 0 for to in range(size)]
        sent = hvd.alltoall(x, splits, name=name)[0]
        np.testing.assert_allclose(sent, gathered if rank == 0 else [])
        variable = tf.Variable(x)
        hvd.broadcast_([variable], 0, name=name)
        np.testing.assert_allclose(variable, ones)
        hvd.barrier(name=name)
        assert hvd.allgather_object(rank, name=name) == list(range(size))
        assert hvd.broadcast_object(rank, 0, name=name) == 0
    assert free_place() == 0


def test_gradients_have_the_words_of_their_calls(in_places, size):
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ys = [
            hvd.allreduce(x, op=hvd.Sum, name=f"y{i}", prescale_factor=i + 1.0) for i in range(100)
        ]
        gathered = hvd.allgather(x, name="gathered")
        mine = hvd.reducescatter(
            tf.tile(x, [size]), op=hvd.Sum, name="scattered", postscale_factor=3.0
        )
    for i, y in enumerate(ys):
        np.testing.assert_allclose(tape.gradient(y, x), [(i + 1.0) * size] * 2)
    np.testing.assert_allclose(tape.gradient(gathered, x), [1.0, 1.0])
    np.testing.assert_allclose(tape.gradient(mine, x), [3.0 * size * size] * 2)


def test_names_count_in_threads(in_places, rank, size):
    """Also those of gradients, which begin in another order on each rank."""
    results = {}
    begins = threading.Barrier(2)

    def run(name, value):
        for i in range(20):
            x = tf.constant(value)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = hvd.allreduce(x, op=hvd.Sum, name=f"{name} {i}")
                z = y * value
            begins.wait()
            gradient = tape.gradient(z, x)
            results.setdefault(name, []).append((float(y), float(gradient)))

    pairs = [("one", 1.0), ("ten", 10.0)]
    threads = [threading.Thread(target=run, args=pair) for pair in pairs[:: 1 - 2 * (rank % 2)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {name: [(value * size, value * size)] * 20 for name, value in pairs}
    assert free_place() == 0


def test_failing_calls_leave_no_place_taken(in_places, rank, size):
    for i in range(100):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"'scaled \d+': prescale_factor"):
            hvd.allreduce(1.0, name=f"scaled {i}", prescale_factor=float("nan"))
        with pytest.raises((TypeError, tf.errors.OpError)):  # there is no kernel
            hvd.allreduce(tf.constant([1j]), name=f"complex {i}")
    if size > 1:
        with pytest.raises(tf.errors.FailedPreconditionError, match="allreduce 'shapes' "):
            hvd.allreduce(tf.ones([2 + rank]), name="shapes")
    assert free_place() == 0
    np.testing.assert_allclose(hvd.allreduce(1.0, op=hvd.Sum, name="after"), size)


def test_more_calls_at_once_than_places(in_places, size):
    """Then their words are attributes again."""
    numbers = [native.lib.hvd_put_eager_words(b"x", 1, b"1", b"1") for _ in range(64)]
    assert native.lib.hvd_put_eager_words(b"x", 1, b"1", b"1") == -1
    assert hvd.allreduce(1.0, op=hvd.Sum, name="one more").numpy() == size
    for number in numbers:
        native.lib.hvd_drop_eager_words(number)
    assert free_place() == 0


def test_asynchronous_eager_code(in_places, rank, size):
    tf.config.experimental.set_synchronous_execution(False)
    try:
        sums = [hvd.allreduce(float(i), op=hvd.Sum, name=f"later {i}") for i in range(200)]
        assert [float(y) for y in sums] == [i * size for i in range(200)]
    finally:
        tf.config.experimental.set_synchronous_execution(True)
    assert free_place() == 0


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "grün", "x" * 5000])
def test_odd_names(name, in_places, rank, size):
    assert hvd.allreduce(1.0, op=hvd.Sum, name=name).numpy() == size
    if size == 1:
        return
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        hvd.allreduce(tf.ones([2 + rank]), name=name)
    # The whole sentence, and not much more.
    assert "rank 0: [2]; rank 1: [3]" in str(caught.value)
    assert len(str(caught.value)) < 1500
