# SPDX-License-Identifier: Apache-2.0
"""The report for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import mean, median

from hvd_tf.timeline.split import PARTS, Step
from hvd_tf.timeline.trace_file import Trace

_MOST_STEPS = 20


def report(name: str, trace: Trace, steps: Sequence[Step], all_steps: bool = False) -> str:
    """The text. `name`: what the trace is called. `all_steps`: not just the longest ones."""
    parts = [_head(name, trace, steps)]
    if steps:
        others = (_split(steps), _verbs(trace), _slowest(steps), _steps(steps, all_steps))
        parts += map(list, others)
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def time_text(time_us: float) -> str:
    """Such as "12.3 us", "1.23 ms" or "4.56 s"."""
    for unit, scale in (("us", 1.0), ("ms", 1e3), ("s", 1e6)):
        value = time_us / scale
        if abs(value) < 999.5 or unit == "s":
            break
    digits = max(0, 3 - len(str(int(abs(value)))))
    return f"{value:.{digits}f} {unit}"


def _head(name: str, trace: Trace, steps: Sequence[Step]) -> list[str]:
    lines = [f"{name}: {len(trace.ranks)} of {trace.size} ranks, {len(steps)} steps"]
    if len(trace.ranks) < trace.size:
        lines.append("ranks: " + ", ".join(map(str, trace.ranks)))
    for host, error_us in sorted(trace.clock_errors_us.items()):
        lines.append(f"clock of host {host}: right within {time_text(error_us)}")
    if trace.dropped:
        lines.append(f"{trace.dropped} events or more are missing: there were too many")
    if not trace.is_complete:
        lines.append("The timeline has no end: the job had one before, or still runs.")
    if not steps:
        lines.append("There is no collective in it.")
    return lines


def _split(steps: Sequence[Step]) -> Iterator[str]:
    yield "time of a step (means over steps and ranks)"
    whole_us = mean(step.end_us - step.begin_us for step in steps)
    rows = [(part, mean(step.parts_us[part] for step in steps)) for part in PARTS]
    for part, time_us in [*rows, ("step", whole_us)]:
        percent = 100 * time_us / whole_us if whole_us else 0.0
        yield f"  {part:18}{time_text(time_us):>10}{percent:7.1f} %"


def _verbs(trace: Trace) -> Iterator[str]:
    yield from (
        "by verb (medians: negotiation of a tensor; queue, copy and wire of a batch)",
        f"  {'verb':14}{'tensors':>9}{'batches':>9}{'MB':>10}"
        f"{'negotiation':>13}{'queue':>10}{'copy':>10}{'wire':>10}",
    )
    for verb in sorted({batch.verb for batch in trace.batches}):
        tensors = [tensor for tensor in trace.tensors if tensor.verb == verb]
        batches = [batch for batch in trace.batches if batch.verb == verb]
        waited_us = median([tensor.agreed_us - tensor.enqueued_us for tensor in tensors] or [0.0])
        yield (
            f"  {verb:14}{len(tensors):9}{len(batches):9}"
            f"{sum(batch.bytes for batch in batches) / 1e6:10.1f}{time_text(waited_us):>13}"
            f"{time_text(median(batch.queue_us for batch in batches)):>10}"
            f"{time_text(median(batch.copy_us for batch in batches)):>10}"
            f"{time_text(median(batch.wire_us for batch in batches)):>10}"
        )


def _slowest(steps: Sequence[Step]) -> Iterator[str]:
    counts = Counter(step.slowest for step in steps if step.slowest is not None)
    if not counts:
        return
    yield "slowest rank (its tensors came last; by how much, at the median)"
    for rank, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        late_us = median(step.lateness_us[rank] for step in steps if step.slowest == rank)
        yield f"  rank {rank:<6}in {count} of {len(steps)} steps, by {time_text(late_us)}"


def _steps(steps: Sequence[Step], all_steps: bool) -> Iterator[str]:
    shown = list(steps)
    if not all_steps and len(steps) > _MOST_STEPS:
        longest = sorted(steps, key=lambda step: step.begin_us - step.end_us)[:_MOST_STEPS]
        shown = sorted(longest, key=lambda step: step.number)
        yield f"the {_MOST_STEPS} longest steps (--steps: all)"
    else:
        yield "steps"
    head = "".join(f"{part:>19}" if " " in part else f"{part:>13}" for part in PARTS)
    yield f"  {'step':>6}{'begin':>10}{'time':>10}{head}  slowest rank"
    for step in shown:
        parts = "".join(
            f"{time_text(step.parts_us[part]):>{19 if ' ' in part else 13}}" for part in PARTS
        )
        slowest = ""
        if step.slowest is not None:
            slowest = f"  {step.slowest}, by {time_text(step.lateness_us[step.slowest])}"
        yield (
            f"  {step.number:6}{time_text(step.begin_us):>10}"
            f"{time_text(step.end_us - step.begin_us):>10}{parts}{slowest}"
        )
