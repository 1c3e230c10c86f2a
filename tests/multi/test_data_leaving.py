# SPDX-License-Identifier: Apache-2.0
"""Who leaves an iteration of `hvd.data`, or fails beside it, tells the ranks that still need it."""

from __future__ import annotations

import threading
import time

import pytest
import tensorflow as tf
from shares import everyones

import hvd_tf as hvd
from hvd_tf._internal import meeting
from hvd_tf.data import agreement

RANKS = (2,)
IN_FULL = (3,)


def numbers_without_length(count):
    return tf.data.Dataset.range(count).filter(lambda number: number >= 0)


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


def test_a_rank_that_goes_on_with_another_loop_has_left_the_first(rank, size):
    """It took its farewell back when all ranks were in the second loop, and others waited."""
    dataset = hvd.data.shard(numbers_without_length(40 * size))
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
    dataset = hvd.data.shard(numbers_without_length(40 * size))
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
        iterator = iter(hvd.data.shard(numbers_without_length(40 * size)))
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
    assert len(list(hvd.data.shard(numbers_without_length(40 * size)))) == 40


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
    dataset = hvd.data.shard(numbers_without_length(4000 * size)).prefetch(1000)

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
