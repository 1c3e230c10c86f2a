# SPDX-License-Identifier: Apache-2.0
"""What is measured: the cases, each one call of a verb on tensors of given shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hvd_tf.bench.resnet50 import gradient_shapes
from hvd_tf.bench.units import bytes_text

# The words that --only takes, in the order of the report. A verb stands for its sweep over sizes. A
# new verb needs a word here, a line in `_SWEEPS` and a function in worker/rank_calls.py.
KINDS = (
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "barrier",
    "fused",
    "variables",
    "sparse",
)

ITEM_BYTES = 4  # all tensors are float32
_INDEX_BYTES = 8
_FUSED = ((100, 256 << 10), (200, 256))
_VARIABLES, _VARIABLE_BYTES = 200, 64 << 10
_SPARSE_ROWS, SPARSE_WIDTH = (1024, 16384), 64

# For each sweep: its calls, its places ("in" or "out"), and the words of its headings.
_SWEEPS = {
    "allreduce": [("allreduce", "out", "TensorFlow has no allreduce in place")],
    "allgather": [("allgather", "out", "the sizes are those of the results")],
    "broadcast": [
        ("broadcast", "out", "into a new tensor"),
        ("broadcast_in_place", "in", "broadcast_variables(inplace=True) of one variable"),
    ],
    "alltoall": [
        ("alltoall", "out", "each rank sends as much to each"),
        ("alltoall_uneven", "out", "splits of 1, 2, 3 ... parts, the least to the rank itself"),
    ],
    "reducescatter": [("reducescatter", "out", "the sizes are those of the tensors given")],
}


@dataclass(frozen=True)
class Case:
    """One thing to time."""

    kind: str
    """One of KINDS."""
    verb: str
    """The verb whose bandwidth is meant: a key of bandwidth.FACTORS."""
    call: str
    """How a rank makes the call: a key of _MAKERS in worker/rank_calls.py."""
    place: str
    """"in": the result is where the argument was. "out": it is a new tensor."""
    heading: str
    """The heading of its table."""
    label: str
    """The label of its row."""
    size_bytes: int
    """The size as NCCL's tests count it; see bandwidth.py."""
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the tensors that one rank gives."""

    @property
    def name(self) -> str:
        """A name that no other case has."""
        return f"{self.call} {self.label}"


def sweep_sizes(least_bytes: int, most_bytes: int, factor: int) -> list[int]:
    """Multiples of ITEM_BYTES from the least to at most the most."""
    sizes, size_bytes = [], least_bytes
    while size_bytes <= most_bytes:
        sizes.append(size_bytes)
        size_bytes *= factor
    return sizes


def make_cases(ranks: int, kinds: Sequence[str], sizes_bytes: Sequence[int]) -> list[Case]:
    """The cases of these kinds for a number of ranks, in the order of the report."""
    makers = {
        "barrier": _barrier,
        "fused": _fused,
        "variables": _variables,
        "sparse": lambda: _sparse(ranks),
    }
    cases: list[Case] = []
    for kind in KINDS:
        if kind in kinds:
            made = makers[kind]() if kind in makers else _sweep(kind, ranks, sizes_bytes)
            cases += made
    return cases


def _sweep(verb: str, ranks: int, sizes_bytes: Sequence[int]) -> Iterator[Case]:
    for call, place, words in _SWEEPS[verb]:
        heading = f"{verb}, {'in place' if place == 'in' else 'out of place'}: {words}"
        counts = [size_bytes // ITEM_BYTES for size_bytes in sizes_bytes]
        parts = ranks if verb == "allgather" else 1
        # Each rank has a part, which is at least one item. So small sizes of many ranks are the
        # same.
        least = {"alltoall": ranks, "alltoall_uneven": ranks * (ranks + 1) // 2}
        step = ranks if call in ("alltoall", "reducescatter") else 1
        for count in dict.fromkeys(
            max(least.get(call, step), count // parts // step * step) for count in counts
        ):
            size_bytes = count * parts * ITEM_BYTES
            label = bytes_text(size_bytes)
            yield Case(verb, verb, call, place, heading, label, size_bytes, ((count,),))


def _barrier() -> Iterator[Case]:
    heading = (
        "barrier, in place: a library that has none makes an allreduce of one number, out of place"
    )
    yield Case("barrier", "barrier", "barrier", "in", heading, "all ranks", 0, ((1,),))


def _fused() -> Iterator[Case]:
    sets: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
        (f"{n} x {bytes_text(size)}", ((size // ITEM_BYTES,),) * n) for n, size in _FUSED
    ]
    shapes = tuple(gradient_shapes())
    sets.append((f"ResNet-50, {len(shapes)}", shapes))
    for call, words in (
        ("allreduce", "one allreduce for each tensor"),
        ("grouped_allreduce", "one grouped_allreduce"),
    ):
        heading = f"fused allreduce, out of place: {words}, in one tf.function"
        for label, shapes in sets:
            size_bytes = ITEM_BYTES * sum(map(math.prod, shapes))
            yield Case("fused", "allreduce", call, "out", heading, label, size_bytes, shapes)


def _variables() -> Iterator[Case]:
    shapes = ((_VARIABLE_BYTES // ITEM_BYTES,),) * _VARIABLES
    label = f"{_VARIABLES} x {bytes_text(_VARIABLE_BYTES)}"
    for call, place, words in (
        ("broadcast_variables", "out", "out of place, an eager call as scripts make it"),
        ("broadcast_in_place", "in", "in place, within one tf.function"),
    ):
        heading = f"initial broadcast by broadcast_variables: {words}"
        size_bytes = _VARIABLES * _VARIABLE_BYTES
        yield Case("variables", "broadcast", call, place, heading, label, size_bytes, shapes)


def _sparse(ranks: int) -> Iterator[Case]:
    heading = "sparse allreduce of IndexedSlices, out of place: every rank gets all rows"
    for rows in _SPARSE_ROWS:
        size_bytes = ranks * rows * (SPARSE_WIDTH * ITEM_BYTES + _INDEX_BYTES)
        label = f"{rows} rows of {SPARSE_WIDTH}"
        shapes = ((rows, SPARSE_WIDTH),)
        # Its rows are gathered, so its bandwidth is an allgather's.
        yield Case(
            "sparse", "allgather", "sparse_allreduce", "out", heading, label, size_bytes, shapes
        )
