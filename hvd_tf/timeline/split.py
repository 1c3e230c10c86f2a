# SPDX-License-Identifier: Apache-2.0
"""Where the time of each step goes, and which rank the others waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Optional

from hvd_tf.timeline.trace_file import Batch, Tensor, Trace

PARTS = ("negotiation", "queue", "copy", "wire", "nothing under way")
"""A step's time. At every moment the last of these stages that any tensor is in counts."""


@dataclass
class Step:
    """What is agreed until a name comes again. Times in us."""

    number: int
    begin_us: float
    end_us: float
    """Where the next step begins. Of the last step: where its last batch has ended."""
    parts_us: dict[str, float]
    """By PARTS; the mean over the ranks. Their sum is the step's time."""
    lateness_us: dict[int, float]
    """By rank: how much later than the first rank it enqueued a tensor. The mean over tensors."""

    @property
    def slowest(self) -> Optional[int]:
        """The rank that the others waited for most. None where one rank alone was traced."""
        if len(self.lateness_us) < 2:
            return None
        return max(self.lateness_us, key=lambda rank: self.lateness_us[rank])


def steps_of(trace: Trace) -> list[Step]:
    """The steps, in order. What only some of the ranks have, because it was cut off, is left out.

    A name that comes again begins a step, as no step reduces a tensor twice. So does another
    iteration of a loop in a graph, unless it was agreed on while the one before was on its way:
    what travels together is one step.
    """
    tensors: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    for tensor in trace.tensors:
        tensors[tensor.process_set, tensor.batch].append(tensor)
    batches: dict[tuple[int, int], list[Batch]] = defaultdict(list)
    for batch in trace.batches:
        batches[batch.process_set, batch.number].append(batch)
    order = sorted(
        (key for key in tensors if key in batches),
        key=lambda key: min(tensor.agreed_us for tensor in tensors[key]),
    )
    groups: list[list[tuple[int, int]]] = []
    firsts: dict[tuple[int, str], Tensor] = {}
    ends_us = {
        (batch.rank, batch.process_set, batch.number): batch.end_us for batch in trace.batches
    }
    for key in order:
        if not groups or any(_begins_step(tensor, firsts, ends_us) for tensor in tensors[key]):
            groups.append([])
            firsts = {}
        groups[-1].append(key)
        for tensor in tensors[key]:
            firsts.setdefault((key[0], tensor.name), tensor)
    steps = []
    begins = [min(t.enqueued_us for key in group for t in tensors[key]) for group in groups]
    for number, group in enumerate(groups):
        of_tensors = [tensor for key in group for tensor in tensors[key]]
        of_batches = [batch for key in group for batch in batches[key]]
        end_us = max(batch.end_us for batch in of_batches)
        if number + 1 < len(groups):
            end_us = max(begins[number + 1], begins[number])
        steps.append(_step(number + 1, begins[number], end_us, of_tensors, of_batches))
    return steps


def _begins_step(
    tensor: Tensor,
    firsts: Mapping[tuple[int, str], Tensor],
    ends_us: Mapping[tuple[int, int, int], float],
) -> bool:
    """Whether the first tensor of this name in the step has travelled."""
    first = firsts.get((tensor.process_set, tensor.name))
    if first is None:
        return False
    if first.instance == tensor.instance:
        return True
    # Times of two ranks need not fit together. The step is the same on both.
    end_us = ends_us.get((tensor.rank, first.process_set, first.batch))
    return end_us is not None and end_us <= tensor.agreed_us


def _step(
    number: int,
    begin_us: float,
    end_us: float,
    tensors: Sequence[Tensor],
    batches: Sequence[Batch],
) -> Step:
    ranks = sorted({tensor.rank for tensor in tensors})
    parts = dict.fromkeys(PARTS, 0.0)
    for rank in ranks:
        mine = split(
            (tensor for tensor in tensors if tensor.rank == rank),
            [batch for batch in batches if batch.rank == rank],
            begin_us,
            end_us,
        )
        for part in PARTS:
            parts[part] += mine[part] / len(ranks)
    return Step(number, begin_us, end_us, parts, _lateness(tensors))


def _lateness(tensors: Iterable[Tensor]) -> dict[int, float]:
    by_name: dict[tuple[int, int, str, int], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        key = tensor.process_set, tensor.batch, tensor.name, tensor.instance
        by_name[key].append(tensor)
    late: dict[int, list[float]] = defaultdict(list)
    for of_ranks in by_name.values():
        first_us = min(map(attrgetter("enqueued_us"), of_ranks))
        for tensor in of_ranks:
            late[tensor.rank].append(tensor.enqueued_us - first_us)
    return {rank: sum(values) / len(values) for rank, values in sorted(late.items())}


def split(
    tensors: Iterable[Tensor], batches: Sequence[Batch], begin_us: float, end_us: float
) -> dict[str, float]:
    """The time of one rank between two moments, by PARTS, in us."""
    spans = [(tensor.enqueued_us, tensor.agreed_us, 0) for tensor in tensors]
    for batch in batches:
        moves_us = batch.agreed_us + batch.queue_us
        spans += [(batch.agreed_us, moves_us, 1), (moves_us, batch.end_us, 2)]
    edges: list[tuple[float, int, int]] = []
    for first_us, last_us, stage in spans:
        first_us, last_us = max(first_us, begin_us), min(last_us, end_us)
        if first_us < last_us:
            edges += [(first_us, 1, stage), (last_us, -1, stage)]
    edges.sort()
    times, under_way, at_us = [0.0, 0.0, 0.0], [0, 0, 0], begin_us
    for time_us, change, stage in edges:
        for latest in (2, 1, 0):
            if under_way[latest]:
                times[latest] += time_us - at_us
                break
        under_way[stage] += change
        at_us = time_us
    # One thread copies, so the copies of batches that move at once do not overlap.
    copy_us = min(sum(batch.copy_us for batch in batches), times[2])
    parts = (times[0], times[1], copy_us, times[2] - copy_us, end_us - begin_us - sum(times))
    return dict(zip(PARTS, parts))
