# SPDX-License-Identifier: Apache-2.0
"""Compares where autotune ends with the best of a grid: one rank of a job.

    hvdrun -np 2 python benchmarks/autotune_grid.py

The work is ResNet-50's 161 gradients: one allreduce each in one tf.function, one thread a rank.
Every setting of the grid is measured --rounds times, in turns. Then these settings are measured
--finals times, in turns:
- the best three of the grid, by their fastest round, because other load only makes rounds slower,
- the one where autotune has ended, after it began with a fusion threshold of 64 KB and chunks of 32
  KB,
- that start,
- the defaults.

Prints milliseconds, and the ratio of autotune's time to that of the grid's best: of the medians, of
the fastest rounds, and the median of those within a turn.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import hvd_tf as hvd
from hvd_tf.bench.resnet50 import gradient_shapes

# The grid: fusion bytes, chunk bytes, batches in flight.
Setting = tuple[int, int, int]
KNOBS = ("HVD_FUSION_BYTES", "HVD_SHM_CHUNK_BYTES", "HVD_BATCHES_IN_FLIGHT")
START: Setting = (65536, 32768, 4)
DEFAULTS: Setting = (128 << 20, 256 << 10, 4)
GRID = list(
    itertools.product(
        (64 << 10, 1 << 20, 8 << 20, 32 << 20, 128 << 20),
        (32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20),
        (1, 4, 16),
    )
)
LONGEST_TUNING_STEPS = 1000


def start_with(setting: Setting, **more: str) -> None:
    """Starts a runtime with these values."""
    hvd.shutdown()
    os.environ["HVD_AUTOTUNE"] = "0"
    os.environ.update(zip(KNOBS, map(str, setting)))
    os.environ.update(more)
    hvd.init()


def step_ms(step: Callable[[], object], setting: Setting, seconds: float) -> float:
    """The median of the steps that fit into the time, which are equally many on every rank."""
    start_with(setting)
    begin = time.perf_counter()
    for _ in range(3):
        step()
    per_step = (time.perf_counter() - begin) / 3
    longest = hvd.allreduce(per_step, op=hvd.Max, name="per_step").numpy()
    times_ms = []
    for _ in range(max(5, int(seconds / longest))):
        begin = time.perf_counter()
        step()
        times_ms.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times_ms)


def tune(step: Callable[[], object]) -> tuple[Setting, int, int]:
    """The values that autotune ends with, and the numbers of steps and samples."""
    with tempfile.TemporaryDirectory() as directory:
        log = os.path.join(directory, "autotune.csv")
        start_with(START, HVD_AUTOTUNE="1", HVD_AUTOTUNE_LOG=log)
        for number in range(1, LONGEST_TUNING_STEPS + 1):
            step()
            lines = []
            if hvd.rank() == 0:
                with open(log) as file:
                    lines = list(csv.DictReader(file))
            final = [0, 0, 0]
            if lines and lines[-1]["kind"] == "final":
                keys = ("fusion_bytes", "chunk_bytes", "batches_in_flight")
                final = [int(lines[-1][key]) for key in keys]
            final = hvd.broadcast(tf.constant(final, tf.int64), 0, name="final").numpy()
            if final[0] > 0:
                fusion, chunk, in_flight = map(int, final)
                return (fusion, chunk, in_flight), number, len(lines) - 1
    raise SystemExit(f"autotune has not settled in {LONGEST_TUNING_STEPS} steps")


def in_turns(
    step: Callable[[], object], settings: Sequence[Setting], rounds: int, seconds: float
) -> dict[Setting, list[float]]:
    """The milliseconds for a step, for each setting in each round."""
    times_ms: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for _ in range(rounds):
        for setting, found in times_ms.items():
            found.append(step_ms(step, setting, seconds))
    return times_ms


def show(times_ms: dict[Setting, list[float]], words: dict[Setting, str]) -> None:
    """Prints a line for each setting, the fastest first."""
    for setting, found in sorted(times_ms.items(), key=lambda item: min(item[1])):
        fusion, chunk, in_flight = setting
        middle, least, most = statistics.median(found), min(found), max(found)
        print(
            f"{fusion >> 10:7d} KB {chunk >> 10:5d} KB {in_flight:3d}  "
            f"{middle:6.1f} ms [{least:.1f} - {most:.1f}]  {words.get(setting, '')}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="over the whole grid")
    parser.add_argument("--finals", type=int, default=9, help="rounds over the best")
    parser.add_argument("--seconds", type=float, default=0.5, help="a setting in a round")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    variables = [tf.Variable(tf.ones(shape)) for shape in gradient_shapes()]

    @tf.function(autograph=False)
    def reduce_all() -> list[tf.Tensor]:
        return [
            hvd.allreduce(variable.read_value(), op=hvd.Sum, name=f"gradient.{i}")
            for i, variable in enumerate(variables)
        ]

    hvd.init()
    step = reduce_all.get_concrete_function()
    tuned, steps, samples = tune(step)
    grid = in_turns(step, GRID, arguments.rounds, arguments.seconds)
    # All ranks go on with the results of rank 0.
    ranking = sorted(grid, key=lambda setting: min(grid[setting]))
    order = tf.constant([GRID.index(setting) for setting in ranking[:3]])
    best = [GRID[i] for i in hvd.broadcast(order, 0, name="order").numpy()]
    words = {DEFAULTS: "the defaults", START: "the start"}
    words.update((setting, f"number {i} of the grid") for i, setting in enumerate(best, 1))
    words[tuned] = "autotune"
    finals = in_turns(step, list(words), arguments.finals, arguments.seconds)
    if hvd.rank() != 0:
        return
    print(f"the grid, {arguments.rounds} rounds: fusion, chunk, in flight")
    show(grid, {})
    print(f"the best, {arguments.finals} rounds; autotune took {samples} samples, {steps} steps")
    show(finals, words)
    fastest = min(best, key=lambda setting: statistics.median(finals[setting]))
    ours, theirs = finals[tuned], finals[fastest]
    medians = statistics.median(ours) / statistics.median(theirs)
    in_turn = statistics.median(a / b for a, b in zip(ours, theirs))
    print(
        f"autotune / best of the grid: medians {medians:.2f}, fastest rounds "
        f"{min(ours) / min(theirs):.2f}, within a turn {in_turn:.2f}"
    )


if __name__ == "__main__":
    main()
