# SPDX-License-Identifier: Apache-2.0
"""Timelines of real jobs, and what comm_stats counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf
from hvd_tf.timeline.split import PARTS, steps_of
from hvd_tf.timeline.trace_file import read

OWN_INIT = True
RANKS = (3,)
HOSTS = "2x2"
IN_FULL = (2,)

pytestmark = pytest.mark.usefixtures("world")

STEPS = 30
BARRIERS = 300
AFTER = "rank 0 has stopped it"
SHAPES = [(3,), (70_000,), (5, 5), (300_000,)]
HEADER_BYTES = 16


@pytest.fixture(scope="module", autouse=True)
def hvd():
    """Not initialised: each test begins and ends that way."""
    return hvd_tf


@pytest.fixture
def file(request) -> Path:
    """One path for all ranks."""
    return Path(os.environ["HVD_TEST_DIR"], f"{request.node.name}.json")


def train(hvd, steps: int, prefix: str) -> None:
    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        sums = [
            hvd.allreduce(x * tf.ones(shape), op=hvd.Sum, name=f"{prefix}/{i}")
            for i, shape in enumerate(SHAPES)
        ]
        return [*sums, hvd.allgather(tf.ones([2 + hvd.rank(), 3]), name=f"{prefix}/rows")]

    for _ in range(steps):
        *sums, rows = step(tf.constant(1.0))
        assert all((value.numpy() == hvd.size()).all() for value in sums)
        assert rows.shape[0] == sum(2 + rank for rank in range(hvd.size()))


def spans_of(events: list[dict], names: dict) -> dict[tuple[int, int], list]:
    """Begin, end and name of what each row shows. Fails where one of the two is missing."""
    spans = defaultdict(list)
    began = defaultdict(list)
    for event in events:
        row = event["pid"], event["tid"]
        if event["ph"] == "X":
            spans[row].append((event["ts"], event["ts"] + event["dur"], event["name"]))
        elif event["ph"] == "B":
            began[row].append(event)
        elif event["ph"] == "E":
            begin = began[row].pop()
            spans[row].append((begin["ts"], event["ts"], begin["name"]))
    # What follows the end of the timeline may have begun on a rank.
    assert [row for row, events in began.items() if events and names[row] != AFTER] == []
    return spans


def kinds_of(spans: list[tuple[float, float, str]]) -> list[str]:
    """The names, in the order of their beginnings.

    The file has a row's spans in the order of their ends. Where a clock became better known, some
    may have no length, and begin at the same time.
    """
    return [name for _, _, name in sorted(spans, key=lambda span: span[0])]


def check_nesting(spans: list[tuple[float, float, str]]) -> None:
    """Two spans of a row are apart, or one is within the other."""
    open_until: list[float] = []
    slack_us = 0.002  # of adding up decimals
    for begin, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_until and open_until[-1] <= begin + slack_us:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + slack_us, (name, begin, end)
        open_until.append(end)


def check_file(file: Path, size: int, prefix: str, steps: int, within_host: bool) -> list[dict]:
    events = json.loads(file.read_text())
    assert {event["pid"] for event in events} == set(range(size))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name" if event["ph"] != "E" else "ph"] == "thread_name"
    }
    spans = spans_of(events, names)
    wire = "SHM" if within_host else "MPI"
    for rank in range(size):
        rows = {names[row]: found for row, found in spans.items() if row[0] == rank}
        for i in range(len(SHAPES)):
            kinds = kinds_of(rows[f"{prefix}/{i}"])
            assert kinds == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"] * steps
        kinds = kinds_of(rows[f"{prefix}/rows"])
        assert kinds == ["NEGOTIATE_ALLGATHER", "ALLGATHER"] * steps
        # Batches that overlap have several rows.
        lanes = [row for row in rows if row.startswith("batches")]
        phases = {name for lane in lanes for _, _, name in rows[lane]}
        assert phases >= {"QUEUE", "MEMCPY_IN_FUSION_BUFFER", f"{wire}_ALLREDUCE"}
        assert "MEMCPY_OUT_FUSION_BUFFER" in phases
        for found in rows.values():
            check_nesting(found)
    return events


def test_the_environment_begins_it(hvd, world, file, monkeypatch):
    monkeypatch.setenv("HOROVOD_TIMELINE", str(file))
    monkeypatch.setenv("HVD_TIMELINE_MARK_CYCLES", "1")
    hvd.init()
    within_host = hvd.cross_size() == 1
    train(hvd, STEPS, "model")
    asked_us = [time.monotonic_ns() / 1e3]
    for _ in range(BARRIERS):
        hvd.allreduce(1.0, name="barrier")
        asked_us.append(time.monotonic_ns() / 1e3)
    size = hvd.size()
    hvd.shutdown()
    asked_us = world.gather(asked_us)
    if world.rank > 0:
        return
    events = check_file(file, size, "model", STEPS, within_host)
    assert any(event.get("name") == "CYCLE_START" for event in events)

    trace = read(file)
    assert trace.is_complete and trace.dropped == 0
    assert trace.ranks == list(range(size)) and trace.size == size
    assert len(trace.tensors) == size * (STEPS * (len(SHAPES) + 1) + BARRIERS)
    steps = steps_of(trace)
    assert len(steps) == STEPS + BARRIERS - 1  # the first barrier ends the last step
    for step in steps:
        assert set(step.lateness_us) == set(range(size))
        length_us = step.end_us - step.begin_us
        assert sum(step.parts_us[part] for part in PARTS) == pytest.approx(length_us, abs=1)
    check_clocks(trace, asked_us)


def check_clocks(trace, asked_us: list[list[float]]) -> None:
    """The ranks' times fit together: all are on one machine, whatever they believe.

    `asked_us`: for each rank, the machine's clock before each barrier and after the last one.
    """
    came_us, ended_us = defaultdict(dict), defaultdict(dict)
    for tensor in trace.tensors:
        if tensor.name == "barrier":
            came_us[tensor.batch][tensor.rank] = tensor.enqueued_us
    for batch in trace.batches:
        if batch.number in came_us:
            ended_us[batch.number][batch.rank] = batch.end_us
    numbers = sorted(came_us)
    assert len(numbers) == len(ended_us) == BARRIERS
    error_us = 2 * max(trace.clock_errors_us.values(), default=0.0)
    # The machine's time at which the file's begins. A call comes to the runtime after the program
    # has asked, and ends before the program asks again. The shortest of 300 are some 50 us each.
    begins_us = [
        (asked[i] - came_us[n][rank], asked[i + 1] - ended_us[n][rank])
        for rank, asked in enumerate(asked_us)
        for i, n in enumerate(numbers)
    ]
    slack_us = 0.01  # of adding up decimals
    earliest_us, latest_us = (max(a for a, _ in begins_us), min(b for _, b in begins_us))
    assert earliest_us <= latest_us + error_us + slack_us
    # No rank has the result of a barrier before the last one has come to it.
    for n in numbers:
        assert min(ended_us[n].values()) >= max(came_us[n].values()) - error_us


def test_it_is_started_and_stopped(hvd, world, file):
    hvd.init()
    train(hvd, 2, "before")
    for name in ("one", "two"):
        path = file.with_suffix(f".{name}")
        hvd.start_timeline(path)
        hvd.broadcast(1.0, 0, name="all ranks have heard of it")
        train(hvd, 3, name)
        hvd.stop_timeline()
        hvd.allreduce(1.0, name=AFTER)
        train(hvd, 2, "between")
        if hvd.rank() == 0:
            check_file(path, hvd.size(), name, 3, hvd.cross_size() == 1)
            assert "before/" not in path.read_text()
    hvd.stop_timeline()


def test_rank_0_alone_can_start_it(hvd, world, file):
    hvd.init()
    if hvd.rank() == 0:
        hvd.start_timeline(str(file), mark_cycles=True)
    hvd.broadcast(1.0, 0, name="started")
    train(hvd, 2, "model")
    if hvd.rank() == 0:
        hvd.stop_timeline()
        check_file(file, hvd.size(), "model", 2, hvd.cross_size() == 1)
    hvd.allreduce(1.0, name=AFTER)


def test_the_report_sees_the_iterations_of_a_loop(hvd, world, file):
    hvd.init()
    if hvd.rank() == 0:
        hvd.start_timeline(file)
    hvd.broadcast(1.0, 0, name="started")

    @tf.function
    def train_for(steps: tf.Tensor) -> tf.Tensor:
        weight = tf.constant(1.0)
        for _ in tf.range(steps):
            weight = hvd.allreduce(weight * tf.ones([9]), op=hvd.Average, name="loop")[0]
        return weight

    train_for(tf.constant(STEPS))
    hvd.broadcast(1.0, 0, name="done")
    hvd.stop_timeline()
    if hvd.rank() == 0:
        # The broadcasts belong to the first and to the last one.
        assert len(steps_of(read(file))) == STEPS
    hvd.allreduce(1.0, name=AFTER)


# It has the file until its input ends.
OTHER_JOB = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    file.write("what is in it")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def test_the_file_of_another_job_is_left_alone(hvd, world, file, monkeypatch):
    if world.rank == 0:
        command = [sys.executable, "-c", OTHER_JOB, str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"written\n"
            with_timeline(hvd, world, file, monkeypatch)
            other.communicate()
        assert file.read_text() == "what is in it"
    else:
        with_timeline(hvd, world, file, monkeypatch)


def with_timeline(hvd, world, file, monkeypatch) -> None:
    world.Barrier()
    monkeypatch.setenv("HVD_TIMELINE", str(file))
    with pytest.raises(ValueError, match=f"HVD_TIMELINE='{file}' .* rank 0 .another job writes it"):
        hvd.init()
    world.Barrier()


def test_what_is_refused(hvd, world, monkeypatch):
    for call in (lambda: hvd.start_timeline("x"), hvd.stop_timeline, hvd.comm_stats):
        with pytest.raises(ValueError, match="has not been initialized; use hvd.init"):
            call()
    monkeypatch.setenv("HVD_TIMELINE", "/nowhere/timeline.json")
    with pytest.raises(ValueError, match="HVD_TIMELINE='/nowhere/timeline.json' cannot .*rank 0"):
        hvd.init()
    monkeypatch.setenv("HVD_TIMELINE", "DYNAMIC")
    hvd.init()
    assert not Path("DYNAMIC").exists()
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match="file_path='/nowhere/x' cannot be written on rank 0"):
            hvd.start_timeline("/nowhere/x")
    else:
        hvd.start_timeline("/nowhere/x")
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == hvd.size()


def test_comm_stats_equal_formulas(hvd, world):
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    start = hvd.comm_stats()
    assert not any(start["verbs"]["allreduce"].values())

    # Up to 4096 bytes go from all to all as they are, on one host.
    small = np.ones(1000, np.float32)
    for _ in range(5):
        hvd.allreduce(small, name="small")
    stats = hvd.comm_stats()["verbs"]["allreduce"]
    assert stats["collectives"] == stats["batches"] == 5
    if hvd.cross_size() == 1:
        assert stats["blocks"] == 5 * (size - 1)
        assert stats["payload_bytes"] == 5 * (size - 1) * small.nbytes
    assert stats["header_bytes"] == HEADER_BYTES * stats["blocks"]

    # A rank sends each peer its shard, and its own shard to each. 6 divides by 2 and by 3.
    before = stats["payload_bytes"]
    large = np.ones(6 << 10, np.float32)
    hvd.allreduce(large, name="large")
    stats = hvd.comm_stats()["verbs"]["allreduce"]
    if hvd.cross_size() == 1:
        assert stats["payload_bytes"] - before == 2 * (size - 1) * large.nbytes // size
        assert stats["blocks"] == (5 + 2) * (size - 1)

    rows = tf.ones([3 + rank, 7])
    for _ in range(2):
        hvd.allgather(rows, name="rows")
    gathered = hvd.comm_stats()["verbs"]["allgather"]
    assert gathered["rows"] == 2 * sum(3 + r for r in range(size))
    if hvd.cross_size() == 1:
        assert gathered["payload_bytes"] == 2 * (size - 1) * (3 + rank) * 7 * 4

    hvd.grouped_allreduce([small, large], name="group")
    stats = hvd.comm_stats()
    assert stats["verbs"]["allreduce"]["collectives"] == 7  # a group is one
    assert stats["verbs"]["broadcast"]["collectives"] == 0
    assert stats["control_bytes_sent"] > 0 and stats["control_bytes_received"] > 0
    # A report of every member, and an answer to each, for each of the nine calls. Over hosts the
    # first rank of each stands for the others of its host.
    calls = 9
    hosts = hvd.cross_size()
    least = calls * (size // hosts - 1 + hosts - 1) if rank == 0 else calls
    assert stats["control_messages_sent"] >= least
    json.dumps(stats)
