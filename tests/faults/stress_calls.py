# SPDX-License-Identifier: Apache-2.0
"""Random calls of every verb: how they are drawn, their inputs, and what NumPy says must come back.

All ranks seed the generator alike that draws a call. Any rank can make any rank's inputs. So a rank
computes what it must get without a collective.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

import hvd_tf as hvd

FLOATS = ("float16", "bfloat16", "float32", "float64")
DTYPES = (*FLOATS, "uint8", "int8", "int32", "int64")
OPS = (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product)
COMPRESSIONS = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "bf16": hvd.Compression.bf16,
}
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_WIRES = {"fp16": "float16", "bf16": "bfloat16"}
# An input repeats so many values: a prime, so that no chunk of a tensor looks like another.
_PERIOD = 4099
_WIDTH = 3  # of what has rows
_TABLE_ROWS = 1009  # a prime, so that squares hit half of them


def _row_ids(count: Any) -> Any:
    """Ids of so many rows: in no order, some twice or more, and others on other ranks."""
    if isinstance(count, tf.Tensor):
        return tf.range(count) ** 2 % _TABLE_ROWS
    return np.arange(count, dtype=np.int64) ** 2 % _TABLE_ROWS


@dataclass(frozen=True)
class Call:
    """One collective. It is the same on every rank, but for the number of rows."""

    verb: str
    """allreduce, sparse, allgather or broadcast."""
    name: str
    members: tuple[int, ...]
    process_set: Any
    dtype: str
    counts: tuple[int, ...]
    """Elements of each tensor; of an allgather and of slices: at most so many rows."""
    grouped: bool = False
    op: int = hvd.Sum
    prescale: float = 1.0
    postscale: float = 1.0
    compression: str = "none"
    root: int = 0
    absent: tuple[int, ...] = ()
    """Members that have joined, and do not make the call."""

    @property
    def present(self) -> list[int]:
        """Members that make the call."""
        return [rank for rank in self.members if rank not in self.absent]

    @property
    def has_rows(self) -> bool:
        return self.verb in ("allgather", "sparse")

    def specs(self) -> list[tf.TensorSpec]:
        """The inputs' specs, which any value of them fits."""
        shapes = [[None, _WIDTH] if self.has_rows else [count] for count in self.counts]
        return [tf.TensorSpec(shape, self.dtype) for shape in shapes]

    def start(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Runs the collective on these tensors. Returns its outputs."""
        common = {"name": self.name, "process_set": self.process_set}
        if self.verb == "broadcast":
            return [hvd.broadcast(tensors[0], self.root, **common)]
        if self.verb == "allgather":
            if self.grouped:
                return hvd.grouped_allgather(tensors, **common)
            return [hvd.allgather(tensors[0], **common)]
        common["op"] = self.op
        if self.verb == "sparse":
            ids = _row_ids(tf.shape(tensors[0], out_type=tf.int64)[0])
            shape = tf.constant([_TABLE_ROWS, _WIDTH], tf.int64)
            slices = tf.IndexedSlices(tensors[0], ids, shape)
            reduced = hvd.allreduce(slices, **common)
            return [reduced.values, reduced.indices]
        common |= {"prescale_factor": self.prescale, "postscale_factor": self.postscale}
        common["compression"] = COMPRESSIONS[self.compression]
        if self.grouped:
            return hvd.grouped_allreduce(tensors, **common)
        return [hvd.allreduce(tensors[0], **common)]

    def inputs(self, rank: int, seed: Sequence[int]) -> list[np.ndarray]:
        """What `rank` puts in when the call is made with this seed."""
        rng = np.random.default_rng([*seed, zlib.crc32(self.name.encode()), rank])
        return [self._input(rng, rank, count) for count in self.counts]

    def _input(self, rng: np.random.Generator, rank: int, count: int) -> np.ndarray:
        shape: tuple[int, ...] = (count,)
        if self.has_rows:
            shape = (int(rng.integers(0, count + 1)) if rng.random() < 0.8 else 0, _WIDTH)
        size = int(np.prod(shape))
        if self.dtype in FLOATS:
            values = rng.uniform(-2, 2, min(size, _PERIOD))
        elif self.op == hvd.Product:  # eight ranks of them fit into every dtype
            values = rng.integers(1, 3 if rank < 4 else 2, min(size, _PERIOD))
        else:
            low, high = (0, 7) if self.dtype.startswith("u") else (-3, 4)
            values = rng.integers(low, high, min(size, _PERIOD))
        return np.resize(values.astype(np_dtype(self.dtype)), shape)

    def check(self, outputs: Sequence[np.ndarray], seed: Sequence[int]) -> None:
        """Raises AssertionError where these are not what the ranks' inputs make."""
        inputs = [self.inputs(rank, seed) for rank in self.present]
        for i, _ in enumerate(self.counts):
            parts = [tensors[i] for tensors in inputs]
            if self.verb == "broadcast":
                self._check_equal(outputs[i], parts[self.present.index(self.root)])
            elif self.verb == "allgather":
                self._check_equal(outputs[i], np.concatenate(parts))
            elif self.verb == "sparse":
                self._check_sparse(*outputs, parts)
            else:
                self._check_reduced(outputs[i], parts)

    def _check_equal(self, actual: np.ndarray, expected: np.ndarray) -> None:
        assert actual.shape == expected.shape, f"{self}: {actual.shape}, not {expected.shape}"
        wrong = np.flatnonzero(np.asarray(actual != expected))
        assert wrong.size == 0, (
            f"{self}: {wrong.size} of {actual.size} elements from {wrong[0]} are wrong, such as "
            f"{actual.flat[wrong[0]]} for {expected.flat[wrong[0]]}"
        )

    def _check_sparse(
        self, actual: np.ndarray, actual_ids: np.ndarray, parts: list[np.ndarray]
    ) -> None:
        ids = np.concatenate([_row_ids(len(part)) for part in parts])
        united, places, terms = np.unique(ids, return_inverse=True, return_counts=True)
        self._check_equal(actual_ids, united)
        rows = np.concatenate(parts).astype(np.float64)
        if self.op == hvd.Average:
            rows /= len(self.members)
        expected, largest = np.zeros((2, len(united), _WIDTH))
        np.add.at(expected, places, rows)
        np.add.at(largest, places, np.abs(rows))
        # A rank's own rows are added up in float32 at least.
        added_in = "float64" if self.dtype == "float64" else "float32"
        slack = _EPS[added_in] * terms[:, None] * largest
        self._check_close(actual, expected, largest, self.dtype, slack)

    def _check_reduced(self, actual: np.ndarray, parts: list[np.ndarray]) -> None:
        if self.dtype not in FLOATS:
            self._check_equal(actual, self._integers(parts).astype(actual.dtype))
            return
        plain = self.prescale == self.postscale == 1.0 and self.compression == "none"
        # Across hosts the order of the terms is not promised.
        if plain and self.op != hvd.Average and "HVD_HOST_ID" not in os.environ:
            at_least = np.float64 if self.dtype == "float64" else np.float32
            in_order = _reduce(self.op, [part.astype(at_least) for part in parts])
            self._check_equal(actual, in_order.astype(actual.dtype))
            return
        wide = [part.astype(np.float64) for part in parts]
        factor = self.postscale / (len(self.members) if self.op == hvd.Average else 1)
        expected = _reduce(self.op, [part * self.prescale for part in wide]) * factor
        sizes = [np.abs(part * self.prescale) for part in wide]
        largest = _reduce(hvd.Product if self.op == hvd.Product else hvd.Sum, sizes) * factor
        self._check_close(actual, expected, largest, _WIRES.get(self.compression, self.dtype))

    def _integers(self, parts: list[np.ndarray]) -> np.ndarray:
        scaled = [np.trunc(part.astype(np.float64) * self.prescale) for part in parts]
        total = _reduce(self.op, scaled)
        if self.op == hvd.Average:
            total = np.trunc(total / len(self.members))
        return np.trunc(total * self.postscale)

    def _check_close(
        self,
        actual: np.ndarray,
        expected: np.ndarray,
        largest: np.ndarray,
        rounded_to: str,
        slack: Any = 0.0,
    ) -> None:
        """`largest`: of what was added or multiplied for each element, which rounding follows.

        `slack`: what may be lost beside that.
        """
        assert actual.dtype == np_dtype(self.dtype) and actual.shape == expected.shape, f"{self}"
        eps = max(_EPS[rounded_to], _EPS[self.dtype])
        allowed = (len(self.members) + 3) * eps * largest + slack + 1e-6
        wrong = np.flatnonzero(~(np.abs(actual.astype(np.float64) - expected) <= allowed))
        assert wrong.size == 0, (
            f"{self}: {wrong.size} of {actual.size} elements from {wrong[0]} are wrong, such as "
            f"{actual.flat[wrong[0]]} for {expected.flat[wrong[0]]}"
        )


def _reduce(op: int, parts: list[np.ndarray]) -> np.ndarray:
    """Reduces in the order of the ranks. The caller divides for an average."""
    total = parts[0]
    for part in parts[1:]:
        if op == hvd.Min:
            total = np.minimum(total, part)
        elif op == hvd.Max:
            total = np.maximum(total, part)
        else:
            total = total * part if op == hvd.Product else total + part
    return total


def np_dtype(dtype: str) -> Any:
    """NumPy's type of that name. For bfloat16 it is TensorFlow's."""
    return tf.as_dtype(dtype).as_numpy_dtype


def draw_call(rng: np.random.Generator, name: str, sets: Sequence[Any], largest: int) -> Call:
    """Draws a call of one of the process sets. Its tensors have up to `largest` elements."""
    process_set = sets[int(rng.integers(len(sets)))] if rng.random() < 0.4 else sets[0]
    members = tuple(process_set.ranks or range(hvd.size()))
    verb = rng.choice(["allreduce", "sparse", "allgather", "broadcast"], p=[0.55, 0.1, 0.2, 0.15])
    dtype = str(rng.choice(DTYPES))
    grouped = bool(verb in ("allreduce", "allgather") and rng.random() < 0.3)
    if verb in ("allgather", "sparse"):
        largest //= 16  # in rows, of every rank
    counts = tuple(draw_count(rng, largest) for _ in range(rng.integers(1, 6) if grouped else 1))
    call = Call(str(verb), name, members, process_set, dtype, counts, grouped)
    if verb == "broadcast":
        return replace(call, root=int(rng.choice(members)))
    if verb == "sparse":
        floating = dtype if dtype in FLOATS else "float32"
        return replace(call, dtype=floating, op=int(rng.choice(OPS[:2])))
    if verb == "allgather":
        return call
    call = replace(call, op=int(rng.choice(OPS)))
    if rng.random() < 0.3 and call.op in (hvd.Sum, hvd.Average):
        before, after = rng.choice([0.5, 2.0]), rng.choice([0.5, 1.0])
        call = replace(call, prescale=float(before), postscale=float(after))
    if rng.random() < 0.3:
        call = replace(call, compression=str(rng.choice(list(COMPRESSIONS))))
    return call


def draw_count(rng: np.random.Generator, largest: int) -> int:
    """Mostly few, at times none, or one, or `largest`."""
    if rng.random() < 0.15:
        return int(rng.choice([0, 1]))
    return int(largest ** rng.uniform(0, 1))
