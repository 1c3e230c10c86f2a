# SPDX-License-Identifier: Apache-2.0
"""python -m hvd_tf.timeline report: whole and cut files, where the time goes, who was slowest."""

from __future__ import annotations

import gzip
import importlib.util
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hvd_tf.timeline import picture
from hvd_tf.timeline.__main__ import main
from hvd_tf.timeline.errors import TimelineError
from hvd_tf.timeline.report import report, time_text
from hvd_tf.timeline.split import PARTS, split, steps_of
from hvd_tf.timeline.trace_file import Batch, Tensor, Trace, read

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def metadata(kind: str, rank: int, row: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": arguments}


def span(
    name: str, rank: int, row: int, begin_us: float, end_us: float, **arguments: Any
) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "pid": rank, "tid": row, "ts": begin_us}
    return {**event, "dur": end_us - begin_us, "args": arguments}


def events_of_a_job(ranks: int = 2, steps: int = 3, late_us: float = 40.0) -> list[dict[str, Any]]:
    """Rank 1 is late by `late_us`. A step takes 1000 us: two tensors in a batch."""
    events = [metadata("hvd_timeline", 0, 0, version=1, size=ranks, ranks=list(range(ranks)))]
    for rank in range(ranks):
        events += [metadata("thread_name", rank, 1000 + i, name=f"t{i}") for i in range(2)]
        events.append(metadata("thread_name", rank, 1, name="batches"))
        for step in range(steps):
            at_us = 1000.0 * step
            enqueued_us = at_us + (late_us if rank == 1 else 0)
            key = {"set": 0, "batch": step + 1}
            for i in range(2):
                facts = {"bytes": 400, "dtype": "float32", "step": 0, **key}
                row = 1000 + i
                events.append(
                    span("NEGOTIATE_ALLREDUCE", rank, row, enqueued_us, at_us + 100, **facts)
                )
                events.append(span("ALLREDUCE", rank, row, at_us + 100, at_us + 400, **facts))
            copies = {"copy_in_us": 30.0, "reduce_us": 20.0, "copy_out_us": 10.0}
            facts = {**key, "tensors": 2, "bytes": 800, "sent_bytes": 800, **copies}
            events.append(span("ALLREDUCE", rank, 1, at_us + 100, at_us + 400, **facts))
            events.append(span("QUEUE", rank, 1, at_us + 100, at_us + 150))
    return events


def write(path: Path, events: list[dict[str, Any]], end: bool = True) -> Path:
    lines = [json.dumps(event) + ",\n" for event in events]
    last = json.dumps(metadata("hvd_timeline_end", 0, 0)) + "\n]\n" if end else ""
    path.write_text("[\n" + "".join(lines) + last)
    return path


def test_where_the_time_goes(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "a.json", events_of_a_job()))
    assert trace.is_complete and trace.size == 2
    steps = steps_of(trace)
    assert [(step.begin_us, step.end_us) for step in steps] == [
        (0.0, 1000.0),
        (1000.0, 2000.0),
        (2000.0, 2400.0),  # nothing follows
    ]
    parts = steps[0].parts_us
    # Rank 0 negotiates for 100 us, rank 1 for 60.
    assert parts["negotiation"] == pytest.approx(80)
    assert parts["queue"] == pytest.approx(50)
    assert parts["copy"] == pytest.approx(60)
    assert parts["wire"] == pytest.approx(400 - 150 - 60)
    assert parts["nothing under way"] == pytest.approx(1000 - 80 - 300)
    assert steps[0].slowest == 1 and steps[0].lateness_us == {0: 0.0, 1: pytest.approx(40)}


def test_what_comes_late_in_a_step_counts_before_what_came_early() -> None:
    def tensor(enqueued_us: float, agreed_us: float) -> Tensor:
        return Tensor(0, "t", "allreduce", 0, 1, 4, enqueued_us, agreed_us)

    batch = Batch(0, "allreduce", 0, 1, 1, 4, 4, 10.0, 50.0, copy_us=15.0, queue_us=10.0)
    # Another tensor is negotiated for all of that time, and on.
    times = split([tensor(0.0, 10.0), tensor(5.0, 70.0)], [batch], 0.0, 100.0)
    assert times == pytest.approx(dict(zip(PARTS, (10 + 20, 10, 15, 15, 30))))


def test_copies_are_no_longer_than_what_moves() -> None:
    batch = Batch(0, "allreduce", 0, 1, 1, 4, 4, 10.0, 50.0, copy_us=99.0)
    assert split([], [batch], 0.0, 100.0) == pytest.approx(dict(zip(PARTS, (0, 0, 40, 0, 60))))


def trace_of(*tensors: tuple[int, str, int, float, float]) -> Trace:
    """Of tensors in batches of their own: rank, name, batch, enqueued and agreed at these us."""
    trace = Trace(2, [0, 1])
    for rank, name, number, enqueued_us, agreed_us in tensors:
        trace.tensors.append(Tensor(rank, name, "a", 0, number, 4, enqueued_us, agreed_us))
        end_us = agreed_us + 10
        trace.batches.append(Batch(rank, "a", 0, number, 1, 4, 4, agreed_us, end_us, 0.0))
    return trace


def test_a_step_whose_tensors_were_enqueued_before_takes_no_negative_time() -> None:
    tensors = ((0, "t", 1, 100.0, 200.0), (0, "t", 2, 300.0, 400.0), (0, "u", 3, 50.0, 500.0))
    steps = steps_of(trace_of(*tensors))
    assert [(step.begin_us, step.end_us) for step in steps] == [(100.0, 100.0), (50.0, 510.0)]
    assert steps[0].parts_us == dict.fromkeys(PARTS, 0.0)


def test_how_late_a_rank_is_counts_where_it_is_the_slowest() -> None:
    late_us = [(0.0, 30.0), (0.0, 50.0), (7.0, 0.0), (0.0, 40.0)]
    tensors = [
        (rank, "t", step + 1, 1000.0 * step + late[rank], 1000.0 * step + 100)
        for step, late in enumerate(late_us)
        for rank in range(2)
    ]
    trace = trace_of(*tensors)
    lines = report("a", trace, steps_of(trace)).splitlines()
    assert "  rank 1     in 3 of 4 steps, by 40.0 us" in lines
    assert "  rank 0     in 1 of 4 steps, by 7.00 us" in lines


def test_a_rank_alone_is_not_the_slowest(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "a.json", events_of_a_job(ranks=1)))
    assert [step.slowest for step in steps_of(trace)] == [None] * 3
    assert "slowest rank (" not in report("a", trace, steps_of(trace))


def loop(ranks: int, iterations: int, at_a_time: int) -> Trace:
    """`at_a_time` iterations begin together, every 1000 us, and end 500 us later."""
    trace = Trace(ranks, list(range(ranks)))
    for number in range(iterations):
        begin_us = 1000.0 * (number // at_a_time) + number % at_a_time
        for rank in range(ranks):
            times = (begin_us, begin_us + 100)
            instance = 7 << 32 | number
            trace.tensors.append(
                Tensor(rank, "t", "allreduce", 0, number + 1, 4, *times, instance=instance)
            )
            trace.batches.append(
                Batch(rank, "allreduce", 0, number + 1, 1, 4, 4, begin_us + 100, begin_us + 500, 9)
            )
    return trace


def test_iterations_of_a_loop_are_steps() -> None:
    steps = steps_of(loop(ranks=2, iterations=30, at_a_time=1))
    assert [step.begin_us for step in steps] == [1000.0 * number for number in range(30)]
    # Those that are on their way together are one.
    steps = steps_of(loop(ranks=2, iterations=40, at_a_time=4))
    assert [step.begin_us for step in steps] == [1000.0 * number for number in range(10)]
    assert all(step.lateness_us == {0: 0.0, 1: 0.0} for step in steps)


def test_a_name_on_several_rows_is_one_name(tmp_path: Path) -> None:
    """Where it overlaps with itself, a rank shows it on a second row. Others need not."""
    events = events_of_a_job()
    second_row = {"name": "t0 (2)", "tensor": "t0"}
    events.insert(1, metadata("thread_name", 1, 2000, **second_row))
    events.insert(1, metadata("thread_name", 1, 2001, name="other tensors"))
    for event in events:
        if event["pid"] == 1 and event["ph"] == "X" and event["tid"] == 1000:
            event["tid"] = 2000
        elif event["pid"] == 1 and event["ph"] == "X" and event["tid"] == 1001:
            event["tid"] = 2001
            event["args"]["tensor"] = "t1"
    trace = read(write(tmp_path / "a.json", events))
    assert {tensor.name for tensor in trace.tensors} == {"t0", "t1"}
    steps = steps_of(trace)
    assert len(steps) == 3
    assert all(step.lateness_us == {0: 0.0, 1: pytest.approx(40)} for step in steps)


def test_a_new_set_with_an_old_id_is_another_set(tmp_path: Path) -> None:
    events = events_of_a_job(steps=1)
    for event in events_of_a_job(steps=1)[1:]:
        arguments = event["args"]
        if "set" in arguments:
            arguments["set_serial"] = 5
        events.append({**event, "ts": event["ts"] + 1000} if "ts" in event else event)
    steps = steps_of(read(write(tmp_path / "a.json", events)))
    assert [step.lateness_us for step in steps] == [{0: 0.0, 1: pytest.approx(40)}]


def test_what_was_lost_does_not_count(tmp_path: Path) -> None:
    events = events_of_a_job()
    same = {"pid": 0, "tid": 1000}
    arguments = {"bytes": 4, "dtype": "float32", "step": 0}
    events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 3e3, "args": arguments, **same})
    events.append({"ph": "E", "ts": 4e3, "args": {"lost": True}, **same})
    # A batch that fails has its phases behind it too.
    events.append(span("ALLREDUCE", 0, 1, 3e3, 4e3, failed=True))
    events.append(span("QUEUE", 0, 1, 3e3, 4e3))
    trace = read(write(tmp_path / "a.json", events))
    assert len(trace.tensors) == 12 and len(steps_of(trace)) == 3
    assert [batch.queue_us for batch in trace.batches] == [50.0] * 6


def test_beginnings_and_ends_on_lines_of_their_own(tmp_path: Path) -> None:
    """What a rank has under way while it sends its events is written so."""
    events = []
    for event in events_of_a_job():
        if event["ph"] != "X":
            events.append(event)
            continue
        same = {key: event[key] for key in ("pid", "tid")}
        facts = {key: event["args"][key] for key in ("set", "batch") if key in event["args"]}
        early = {**event["args"]} if event["name"].startswith("NEGOTIATE") else facts
        for key in facts if early is not facts else ():
            early.pop(key)
        if event["name"] == "QUEUE":
            events.append(event)
            continue
        begin = {"ph": "B", "name": event["name"], "ts": event["ts"], "args": early}
        end = {"ph": "E", "ts": event["ts"] + event["dur"], "args": event["args"]}
        events += [{**begin, **same}, {**end, **same}]
    whole = read(write(tmp_path / "whole.json", events_of_a_job()))
    parts = read(write(tmp_path / "parts.json", events))
    assert (parts.tensors, parts.batches) == (whole.tensors, whole.batches)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", events_of_a_job(), end=False)
    text = path.read_text()
    for length in range(200, len(text), 97):
        path.write_text(text[:length])
        trace = read(path)
        assert not trace.is_complete
        assert "The timeline has no end" in report("a", trace, steps_of(trace))


def saved_again() -> dict[str, Callable[[list[dict[str, Any]]], str]]:
    """How other tools write the events of a trace."""

    def reordered(events: list[dict[str, Any]]) -> str:
        return json.dumps(sorted(events, key=lambda event: (event.get("ts", 1e9), event["name"])))

    return {
        "one line": json.dumps,
        "indented": lambda events: json.dumps(events, indent=2),
        "an object": lambda events: json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}),
        "an indented object": lambda events: json.dumps(
            {"otherData": {}, "traceEvents": events}, indent=1, sort_keys=True
        ),
        "an event in several lines": lambda events: (
            ",\n".join(["[" + json.dumps(events[0], indent=1), *map(json.dumps, events[1:])]) + "]"
        ),
        "lines without a list": lambda events: "\n".join(map(json.dumps, events)) + "\n",
        "with a byte order mark": lambda events: "\ufeff" + json.dumps(events),
        "in another order": reordered,
        "backwards": lambda events: json.dumps(events[::-1]),
        "lines backwards": lambda events: "\n".join(map(json.dumps, events[::-1])) + "\n",
    }


@pytest.mark.parametrize("way", saved_again())
def test_a_trace_that_another_tool_has_saved_again(tmp_path: Path, way: str) -> None:
    path = write(tmp_path / "a.json", events_of_a_job())
    ours = read(path)
    path.write_text(saved_again()[way]([*events_of_a_job(), metadata("hvd_timeline_end", 0, 0)]))
    found = read(path)
    assert found.is_complete and (found.size, found.ranks) == (ours.size, ours.ranks)
    assert sorted(map(repr, found.tensors)) == sorted(map(repr, ours.tensors))
    assert sorted(map(repr, found.batches)) == sorted(map(repr, ours.batches))
    assert report("a", found, steps_of(found)) == report("a", ours, steps_of(ours))


def test_a_compressed_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", events_of_a_job())
    ours, packed = read(path), gzip.compress(path.read_bytes())
    path = tmp_path / "a.json.gz"
    path.write_bytes(packed)
    assert read(path) == ours
    path.write_bytes(packed[:-20])
    with pytest.raises(TimelineError, match="a.json.gz cannot be unpacked"):
        read(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no timeline of hvd_tf"),
        ("[\n]\n", "is no timeline of hvd_tf"),
        ("some text\nmore\n", "line 1: this is no event"),
        ('[\n{"ph":"X"},\n]\n', "line 2: this is no event"),
        ('[\n[1],\n{"ph":"M"}\n', "line 2: this is no event"),
        ('[{"ph": "M"}]', "event 1: this is no event"),
        ('[{"ph": "M", "name": "process_name", "pid": 0, "tid": 0}, 7]', "event 2: this is no"),
        ('{"traceEvents": 7}', "is no timeline of hvd_tf"),
        ('{"traceEvents": []}', "is no timeline of hvd_tf"),
        ('{"traceEvents": [\n{"ph": "M"},\n', "line 3: this is no event"),
        ("7", "is no timeline of hvd_tf"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TimelineError, match=words):
        read(path)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    events = [
        *events_of_a_job(),
        metadata("hvd_clock", 1, 0, host=1, offset_ns=5, error_ns=12_300),
        metadata("hvd_clock", 1, 0, host=1, offset_ns=6, error_ns=9_000),
        metadata("hvd_dropped_events", 1, 0, count=7),
        metadata("hvd_lost_chunks", 1, 0, count=2),
    ]
    events[0] = metadata("hvd_timeline", 0, 0, version=1, size=100, ranks=[0, 1])
    trace = read(write(tmp_path / "a.json", events))
    lines = report("a", trace, steps_of(trace)).splitlines()
    assert lines[0] == "a: 2 of 100 ranks, 3 steps"
    assert "ranks: 0, 1" in lines
    assert "clock of host 1: right within 12.3 us" in lines
    assert "9 events or more are missing: there were too many" in lines


def test_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", events_of_a_job(steps=30))
    assert main(["report", str(path), "--no-picture"]) == 0
    text = capsys.readouterr().out
    assert f"{path}: 2 of 2 ranks, 30 steps" in text
    assert "  rank 1     in 30 of 30 steps, by 40.0 us" in text
    assert "the 20 longest steps" in text
    assert "allreduce" in text
    assert main(["report", str(path), "--steps", "--no-picture"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "1, by" in line]) == 30
    path = write(tmp_path / "a.json", events_of_a_job(steps=20))
    assert main(["report", str(path), "--no-picture"]) == 0
    assert "longest steps" not in capsys.readouterr().out
    assert main(["report", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = write(tmp_path / "a.json", events_of_a_job())
    assert main(["report", str(path)]) == 0
    assert "no picture: matplotlib is not installed: run '" in capsys.readouterr().err
    assert main(["report", str(path), "--picture", str(tmp_path / "b.png")]) == 2
    assert "b.png cannot be drawn: matplotlib is not installed" in capsys.readouterr().err


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
def test_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", events_of_a_job())
    assert main(["report", str(path)]) == 0
    assert f"picture: {path}.png" in capsys.readouterr().out
    assert Path(f"{path}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
def test_a_picture_that_finds_no_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.json", events_of_a_job())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        assert main(["report", str(path)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = f"{path}.png cannot be written (File too large): name another place by --picture"
    assert error in capsys.readouterr().err
    assert not Path(f"{path}.png").exists()
    # A device is not taken away.
    assert main(["report", str(path), "--picture", "/dev/full"]) == 2
    assert "/dev/full cannot be written (No space left" in capsys.readouterr().err
    assert Path("/dev/full").exists()


@pytest.mark.parametrize(("count", "of_a_bar"), [(400, 1), (401, 2), (1000, 3)])
def test_many_steps_are_few_bars(count: int, of_a_bar: int) -> None:
    trace = Trace(2, [0, 1])
    for number in range(1, count + 1):
        at_us = 1000.0 * number
        trace.tensors.append(Tensor(0, "t", "allreduce", 0, number, 4, at_us, at_us + 10))
        trace.batches.append(
            Batch(0, "allreduce", 0, number, 1, 4, 4, at_us + 10, at_us + 500, copy_us=90.0)
        )
    bars = picture.bars_of(steps_of(trace))
    assert len(bars) == -(-count // of_a_bar) and bars[0][0] == (1 + of_a_bar) / 2
    assert bars[0][1]["copy"] == pytest.approx(0.09)


def test_times_as_people_write_them() -> None:
    assert [time_text(time_us) for time_us in (0.0, 12.34, 1234.0, 4_560_000.0)] == [
        "0.00 us",
        "12.3 us",
        "1.23 ms",
        "4.56 s",
    ]
