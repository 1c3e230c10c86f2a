# SPDX-License-Identifier: Apache-2.0
"""Random steps of many collectives at once, checked against NumPy.

    stress_program.py SEED SECONDS

All ranks draw the same rounds from SEED. A round has some calls in graphs and some in eager
threads. Each rank starts them in an order of its own and with delays of its own. At times one or
two ranks abort one of the graphs, which must fail on every rank and nowhere else. At times some
ranks join, and the others go on without them.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from stress_calls import DTYPES, Call, draw_call, np_dtype

import hvd_tf as hvd

LARGEST = 1 << 20  # elements of a tensor
POISON = "a number that is none"
v1 = tf.compat.v1


class Graph:
    """Calls in one graph, as a tf.function or a v1 session, that its victims can make fail."""

    def __init__(
        self,
        kind: str,
        name: str,
        calls: list[Call],
        victims: Sequence[int],
        rng: np.random.Generator,
    ) -> None:
        """`rng` is this rank's own. Everything else is the same on every rank."""
        self.calls = [call for call in calls if hvd.rank() in call.members]
        self._name = name
        self._is_victim = hvd.rank() in victims
        self._order = [int(i) for i in rng.permutation(len(self.calls))]
        self._delays = rng.choice([0.0, 0.0, 0.003], len(self.calls))
        specs = [tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.float32)]
        specs += [spec for call in self.calls for spec in call.specs()]
        make = {"function": _function, "session": _session}[kind]
        self._run = make(self._body, specs)

    def _body(
        self, poison: tf.Tensor, wait_s: tf.Tensor, *tensors: tf.Tensor
    ) -> list[list[tf.Tensor]]:
        mine = iter(tensors)
        inputs = [[next(mine) for _ in call.counts] for call in self.calls]
        # From a tensor that has been agreed the peers' steps that belong to this one are known.
        early = hvd.allreduce(tf.ones([3]), op=hvd.Sum, name=f"{self._name}/early")
        with tf.control_dependencies([early]):
            checked = tf.debugging.check_numerics(_delayed(poison, wait_s), POISON)
        late = hvd.allreduce(checked, op=hvd.Sum, name=f"{self._name}/late")
        # Where the check fails, the victim has this one under way: an abort is told by a
        # collective that it breaks off.
        with tf.control_dependencies([early if self._is_victim else late]):
            one = tf.ones([])
        held = hvd.allreduce(one, op=hvd.Sum, name=f"{self._name}/held")
        outputs: list[list[tf.Tensor]] = [[] for _ in self.calls]
        for i in self._order:
            call = self.calls[i]
            outputs[i] = call.start([_delayed(t, self._delays[i]) for t in inputs[i]])
        return [*outputs, [early, late, held]]

    def run(self, seed: Sequence[int], abort: str) -> list[np.ndarray]:
        """Runs a step. Returns outputs that are alike on all ranks. Empty: it failed, as it should.

        `abort` is what the victims do: nothing (""), "fail", or "disagree" about a shape.
        """
        inputs = [call.inputs(hvd.rank(), seed) for call in self.calls]
        fed = [array for arrays in inputs for array in arrays]
        poison, wait_s = np.ones(1, np.float32), np.float32(0)
        if abort == "fail" and self._is_victim:
            poison, wait_s = np.float32([np.nan]), np.float32(0.1)
        if abort == "disagree" and self._is_victim:
            poison = np.ones(2, np.float32)
        try:
            *outputs, ends = self._run(poison, wait_s, *fed)
        except tf.errors.OpError as error:
            told = {"fail": POISON, "disagree": "[2]"}.get(abort, "nothing")
            assert told in str(error), f"abort {abort!r}, but: {error}"
            return []
        assert not abort, f"a graph with abort {abort!r} succeeded"
        for array in ends:
            assert (array == hvd.size()).all(), f"{self._name}: {ends}"
        for call, arrays in zip(self.calls, outputs):
            call.check(arrays, seed)
        return _alike(self.calls, outputs)


def _function(body: Callable[..., Any], specs: list[tf.TensorSpec]) -> Callable[..., Any]:
    traced = tf.function(body, input_signature=specs, autograph=False)
    return lambda *fed: tf.nest.map_structure(
        lambda tensor: tensor.numpy(), traced(*map(tf.constant, fed))
    )


def _session(body: Callable[..., Any], specs: list[tf.TensorSpec]) -> Callable[..., Any]:
    graph = tf.Graph()
    with graph.as_default():
        places = [v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        fetches = body(*places)
    session = v1.Session(graph=graph)
    return lambda *fed: session.run(fetches, dict(zip(places, fed)))


def _delayed(tensor: tf.Tensor, delay_s: Any) -> tf.Tensor:
    if not tf.is_tensor(delay_s) and delay_s == 0:
        return tensor

    def sleep(value: np.ndarray, seconds: float) -> np.ndarray:
        time.sleep(float(seconds))
        return value

    later = tf.numpy_function(sleep, [tensor, delay_s], tensor.dtype, stateful=False)
    later.set_shape(tensor.shape)
    return later


def _alike(calls: list[Call], outputs: list[list[np.ndarray]]) -> list[np.ndarray]:
    of_all = (arrays for call, arrays in zip(calls, outputs) if len(call.members) == hvd.size())
    return [array for arrays in of_all for array in arrays]


class Stress:
    """The rounds of this rank."""

    def __init__(self, seed: int, sets: Sequence[Any]) -> None:
        self._seed = seed
        self._sets = sets
        self._own = np.random.default_rng([seed, 0, hvd.rank()])
        self._pool = ThreadPoolExecutor(64)
        self.counts = {"rounds": 0, "steps": 0, "calls": 0, "aborts": 0, "joins": 0}

    def round(self, number: int) -> None:
        """Draws graphs and eager calls, and makes some steps of them."""
        rng = np.random.default_rng([self._seed, 1, number])
        graphs = []
        for i in range(rng.integers(1, 3)):
            # The names of the round before, with other signatures.
            name = f"graph{i}"
            # Aborts of several sets, or graphs, at a time may cost more than a step each.
            sets = self._sets[: 1 if i == 0 else None]
            calls = self._draw(rng, name, int(rng.integers(1, 16)), sets)
            victims = rng.choice(hvd.size(), rng.integers(1, hvd.size()), replace=False)
            kind = str(rng.choice(["function", "session"]))
            graphs.append(Graph(kind, name, calls, victims, self._own))
        eager = self._draw(rng, "eager", int(rng.integers(0, 8)), self._sets)
        for step in range(rng.integers(1, 7)):
            seed = [self._seed, 2, number, step]
            self._step(seed, graphs, eager)
        self.counts["rounds"] += 1

    def _draw(
        self, rng: np.random.Generator, name: str, count: int, sets: Sequence[Any]
    ) -> list[Call]:
        return [draw_call(rng, f"{name}/{i}", sets, LARGEST) for i in range(count)]

    def _step(self, seed: list[int], graphs: list[Graph], eager: list[Call]) -> None:
        rng = np.random.default_rng(seed)
        aborts = [""] * len(graphs)
        aborts[0] = str(rng.choice(["", "fail", "disagree"], p=[0.6, 0.2, 0.2]))
        jobs: list[Callable[[], list[np.ndarray]]] = [
            lambda graph=graph, abort=abort: graph.run(seed, abort)
            for graph, abort in zip(graphs, aborts)
        ]
        for call in eager:
            if hvd.rank() in call.members:
                jobs.append(lambda call=call: _eagerly(call, seed))
        if rng.random() < 0.3:
            variables = _draw_variables(rng)
            root, inplace = int(rng.integers(hvd.size())), bool(rng.random() < 0.5)
            jobs.append(lambda: _broadcast_variables(variables, root, inplace, seed))
        results: list[Optional[list[np.ndarray]]] = [None] * len(jobs)
        started = {}
        for i in self._own.permutation(len(jobs)):
            started[i] = self._pool.submit(jobs[i])
            if self._own.random() < 0.2:
                time.sleep(self._own.uniform(0, 0.005))
        for i, future in started.items():
            results[i] = future.result()
        if rng.random() < 0.3:
            self._compare([array for arrays in results for array in arrays or []])
        if rng.random() < 0.3:
            self._join(rng, seed)
        self.counts["steps"] += 1
        self.counts["calls"] += sum(len(graph.calls) for graph in graphs) + len(eager)
        self.counts["aborts"] += sum(map(bool, aborts))

    def _join(self, rng: np.random.Generator, seed: list[int]) -> None:
        """Some ranks join, and the others make calls before they do."""
        absent = tuple(rng.choice(hvd.size(), rng.integers(1, hvd.size()), replace=False).tolist())
        calls = [
            replace(call, absent=absent)
            for call in self._draw(rng, "uneven", int(rng.integers(1, 8)), self._sets[:1])
        ]
        present = calls[0].present
        calls = [replace(call, root=int(rng.choice(present))) for call in calls]
        if hvd.rank() in present:
            order = self._own.permutation(len(calls))
            for future in [self._pool.submit(_eagerly, calls[i], seed) for i in order]:
                future.result()
        # The calls needed the absent ranks' joins, so one of the others is the last.
        last = int(hvd.join())
        assert last in present, f"rank {last} was the last to join, not one of {present}"
        self.counts["calls"] += len(calls)
        self.counts["joins"] += 1

    def _compare(self, arrays: list[np.ndarray]) -> None:
        """All ranks have the same bits."""
        mark = 0
        for array in arrays:
            mark = zlib.crc32(np.ascontiguousarray(array).view(np.uint8), mark)
        marks = hvd.allgather([mark], name="marks").numpy()
        assert (marks == mark).all(), f"the ranks' bits differ: {marks}"


def _eagerly(call: Call, seed: list[int]) -> list[np.ndarray]:
    outputs = call.start([tf.constant(array) for array in call.inputs(hvd.rank(), seed)])
    arrays = [output.numpy() for output in outputs]
    call.check(arrays, seed)
    return _alike([call], [arrays])


def _draw_variables(rng: np.random.Generator) -> list[tuple[str, int]]:
    dtypes = rng.choice(DTYPES, rng.integers(1, 12))
    return [(str(dtype), int(rng.choice([0, 1, 7, 1000, 70000]))) for dtype in dtypes]


def _broadcast_variables(
    drawn: list[tuple[str, int]], root: int, inplace: bool, seed: list[int]
) -> list[np.ndarray]:
    def values(rank: int) -> list[np.ndarray]:
        rng = np.random.default_rng([*seed, rank])
        return [rng.integers(0, 9, count).astype(np_dtype(dtype)) for dtype, count in drawn]

    variables = [tf.Variable(array, name=f"v{i}") for i, array in enumerate(values(hvd.rank()))]
    hvd.broadcast_variables(variables, root, inplace=inplace)
    arrays = [variable.numpy() for variable in variables]
    for array, expected in zip(arrays, values(root)):
        np.testing.assert_array_equal(array, expected)
    return arrays


def process_sets(size: int) -> list[Any]:
    """Overlapping ones, and one of a single rank."""
    found = {tuple(range(0, size, 2)), tuple(range(1, size)), (size - 1,), (0, size - 1)}
    return [hvd.ProcessSet(ranks) for ranks in sorted(found - {tuple(range(size))})]


def main(seed: int, seconds: float) -> None:
    """Makes rounds until the time is over on rank 0. Makes at least one."""
    # As many as the sleeping ones and some more: what waits in a py_function holds a thread.
    tf.config.threading.set_inter_op_parallelism_threads(8)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")  # it warns of many traced functions
    hvd.init()
    size = hvd.size()
    hvd.shutdown()
    sets = process_sets(size)
    hvd.init(process_sets=sets)
    stress = Stress(seed, [hvd.global_process_set, *sets])
    end = time.monotonic() + seconds
    number, left = 0, 1.0
    while left > 0:
        try:
            stress.round(number)
        except BaseException:
            print(f"in round {number} of seed {seed}", flush=True)
            raise
        number += 1
        left = float(hvd.broadcast(np.float64(end - time.monotonic()), 0, name="left"))
    print("right:", stress.counts, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
