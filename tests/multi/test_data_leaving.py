# SPDX-License-Identifier: Apache-2.0
"""Who leaves an iteration of `hvd.data`, or fails beside it, tells the ranks that still need it."""

from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf
from shares import everyones, without_length

import hvd_tf as hvd
from hvd_tf._internal import meeting
from hvd_tf.data import agreement

RANKS = (2,)
IN_FULL = (3,)


def watch_shares(monkeypatch, before):
    """Has `before` called with the number of each share that a thread is about to gather, from 1.

    Numbers are those of the first iteration. Other ones are left alone.
    """
    gather, names = agreement.ops.allgather, []

    def watched(*args, **kwargs):
        name = kwargs.get("name") or ""
        if name.endswith("/batch") and name in (names or [name]):
            names.append(name)
            before(len(names))
        return gather(*args, **kwargs)

    monkeypatch.setattr(agreement.ops, "allgather", watched)


def test_leaving_a_loop_early_and_starting_again(rank, size):
    dataset = hvd.data.shard(without_length(40 * size)).prefetch(rank + 1)
    for _ in range(5):
        for count, step in enumerate(dataset):
            total = int(hvd.allreduce(step, op=hvd.Sum, name="step"))
            assert total == sum(range(count * size, (count + 1) * size))
            if count == 3:
                break
    assert len(list(dataset)) == 40


@pytest.mark.parametrize("shuffle_buffer", [None, 100])
def test_leaving_between_two_passes(rank, size, shuffle_buffer):
    """Rank 0 has read ahead into the second one, which the others have not begun."""
    begins, is_ahead = [], threading.Event()

    def noted(number):
        if number == 0:
            begins.append(number)
        if len(begins) == 2:
            is_ahead.set()
        return number

    source = without_length(4 * size).map(lambda n: tf.numpy_function(noted, [n], tf.int64))
    dataset = hvd.data.shard(source, epochs=2, shuffle_buffer=shuffle_buffer)
    options = tf.data.Options()
    options.autotune.enabled = False  # it reads ahead too
    iterator = iter((dataset.prefetch(5) if rank == 0 else dataset).with_options(options))
    for _ in range(4):
        next(iterator)
    assert rank > 0 or is_ahead.wait(30)
    gathering = [one for one in threading.enumerate() if one.name == "hvd-data"]
    del iterator
    everyones(None)
    for one in gathering:  # none waits for a rank that has not begun the second pass
        one.join(30)
        assert not one.is_alive()
    assert len(list(dataset)) == 8


def test_leaving_a_loop_on_one_rank_only(rank, size):
    dataset = hvd.data.shard(without_length(40 * size))
    if rank == 0:
        for count, _ in enumerate(dataset):
            if count == 3:
                break
    else:
        with pytest.raises(tf.errors.OpError, match="from rank 0: it left its dataset"):
            list(dataset)
    assert len(list(dataset)) == 40


def test_a_rank_that_leaves_concerns_only_who_needs_its_data(rank, size, capfd):
    """The others read ahead what rank 0 does not have yet. No traceback is logged of that."""
    dataset = hvd.data.shard(without_length(40 * size)).prefetch(1 if rank == 0 else 20)
    for count, _ in enumerate(dataset):
        if count == 3:
            break
    everyones(None)
    assert len(list(dataset)) == 40
    iterator = iter(dataset)
    if rank == 0:
        next(iterator)
        del iterator
    else:
        text = "no next batch: .*will not come from rank 0: it left its dataset when .* give all"
        with pytest.raises(tf.errors.OpError, match=text) as caught:
            list(iterator)
        assert "Traceback" not in str(caught.value)
    everyones(None)
    told = capfd.readouterr().err
    assert "Traceback" not in told
    if tf.__version__.startswith("2.15."):  # later ones log every failure of a function, in a line
        assert "left its dataset" not in told


def test_a_rank_that_leaves_with_a_share_on_its_way(rank, size, monkeypatch):
    """Its last share came behind its farewell, where the thread that gathers was late."""
    is_late, has_left, calls = threading.Event(), threading.Event(), []
    gather, leave = agreement.ops.allgather, agreement.Agreement._leave

    def late_gather(*args, **kwargs):
        calls.append(None)
        if len(calls) == 2 and rank == 0:
            is_late.set()
            assert has_left.wait(30)
        elif len(calls) == 2:
            everyones(None)  # rank 0 has its share on its way
        return gather(*args, **kwargs)

    def tell(self):
        leave(self)
        has_left.set()

    dataset = hvd.data.shard(without_length(40 * size))
    iterator = iter(dataset)
    monkeypatch.setattr(agreement.ops, "allgather", late_gather)
    if rank == 0:
        monkeypatch.setattr(agreement.Agreement, "_leave", tell)
        next(iterator)
        assert is_late.wait(30)
        del iterator
        assert has_left.wait(30)
        time.sleep(0.2)  # until the leader has that share
        everyones(None)
    else:
        text = "from rank 0: it left its dataset when 1 batches"
        with pytest.raises(tf.errors.OpError, match=text):
            list(iterator)
    monkeypatch.undo()
    everyones(None)
    assert len(list(dataset)) == 40


def test_a_rank_that_goes_on_with_another_loop_has_left_the_first(rank, size):
    """It took its farewell back when all ranks were in the second loop, and others waited."""
    dataset = hvd.data.shard(without_length(40 * size))
    first, second = iter(dataset), iter(dataset)
    next(first), next(second)
    if rank == 0:
        del first
    for _ in range(5):
        next(second)
    everyones(None)
    if rank > 0:
        with pytest.raises(tf.errors.OpError, match="from rank 0: it left its dataset"):
            list(first)
    everyones(None)
    assert len(list(dataset)) == 40


def test_a_share_that_comes_when_all_are_in_the_next_loop(rank, size, monkeypatch):
    """The others had taken their farewells back, so it waited for them."""
    allowed, is_late, threads = [2], threading.Event(), {}

    def before(number):
        threads[number] = threading.current_thread()
        while rank == 0 and number > allowed[0]:
            is_late.set()
            time.sleep(0.01)

    watch_shares(monkeypatch, before)
    dataset = hvd.data.shard(without_length(40 * size))
    iterator = iter(dataset.prefetch(10) if rank == 0 else dataset)
    next(iterator)
    time.sleep(0.5)  # until the others have read ahead
    allowed[0] = everyones(len(threads))[-1]  # rank 0 has one share more
    is_late.clear()
    if rank == 0:
        assert is_late.wait(30)
    everyones(None)
    del iterator
    assert len(list(dataset.take(10))) == 10
    everyones(None)
    allowed[0] = 40
    for thread in threads.values():
        thread.join(10)
        assert not thread.is_alive()
    everyones(None)
    assert len(list(dataset)) == 40


def test_a_share_on_its_way_where_its_rank_fails(rank, size, folder, monkeypatch):
    """It took back what the rank had said of its failure, and the others waited for the next."""
    is_late, has_failed, sent = threading.Event(), threading.Event(), folder / "sent"

    def before(number):
        if number == 2 and rank == 0:
            is_late.set()
            assert has_failed.wait(30)
            threading.Timer(0.2, sent.touch).start()
        elif number == 2:
            while not sent.exists():
                time.sleep(0.01)

    exchange = meeting.Meeting._exchange

    def tell(self, failure):
        has_failed.set()  # its peers have been told
        exchange(self, failure)

    def read():
        iterator = iter(hvd.data.shard(without_length(40 * size)))
        for _ in iterator:
            if rank == 0:
                assert is_late.wait(30)
                raise ValueError("a bad batch")

    watch_shares(monkeypatch, before)
    monkeypatch.setattr(meeting.Meeting, "_exchange", tell)
    with pytest.raises(ValueError if rank == 0 else tf.errors.OpError, match="a bad batch"):
        meeting.everywhere(read, "reading")
    monkeypatch.undo()
    everyones(None)
    assert len(list(hvd.data.shard(without_length(40 * size)))) == 40


def lines_of_thread(dataset, destroyed_at=None):
    """The lines of agreement.py that the thread of a new iteration passes for some steps.

    destroyed_at: the line in which the thread destroys the iterator. None: it does not. The thread
      must end.
    """
    iterators, threads, gathered, passed = [], [], [], set()
    is_in_use = threading.Event()  # the main thread has its first step, and needs no more
    is_enough = threading.Event()

    def trace(frame, event, argument):
        if frame.f_code.co_filename != agreement.__file__:
            return None
        if not threads:
            threads.append(threading.current_thread())
        if event == "call" and frame.f_code is agreement.Agreement._found.__code__:
            gathered.append(None)
            if len(gathered) == 2:
                assert is_in_use.wait(30)
            elif len(gathered) == 5:
                is_enough.set()
        if event == "line" and 2 <= len(gathered) < 5:
            passed.add(frame.f_lineno)
            if frame.f_lineno == destroyed_at and iterators:
                iterators.clear()
                is_enough.set()
        return trace

    threading.settrace(trace)
    iterators.append(iter(dataset))
    next(iterators[0])
    threading.settrace(None)
    is_in_use.set()
    assert is_enough.wait(30)
    iterators.clear()
    threads[0].join(30)
    assert not threads[0].is_alive(), f"the thread waits in line {destroyed_at}"
    return sorted(passed)


def test_an_iterator_that_the_thread_itself_destroys(rank, size):
    """As by Python's garbage collection, which may come on any line. A lock was held in some."""
    dataset = hvd.data.shard(without_length(4000 * size)).prefetch(1000)

    def in_turn(destroyed_at=None):
        iterator = lines = None
        if rank == 0:
            lines = lines_of_thread(dataset, destroyed_at)
        else:  # it stays in the loop
            iterator = iter(dataset)
            next(iterator)
        lines = hvd.broadcast_object(lines, name="lines")
        del iterator
        return lines

    lines = in_turn()
    assert len(lines) > 10
    for line in lines:
        in_turn(line)
