# SPDX-License-Identifier: Apache-2.0
"""What a timeline costs: a step of 161 allreduces with and without one, in turns.

    hvdrun -np 2 python timeline_pairs.py --pairs 20
    hvdrun -np 2 python timeline_pairs.py --pairs 20 --small

The tensors have the shapes of ResNet-50's gradients, 100 MB in all, or with --small one element
each. A pair is two blocks of steps, one after the other, in one process. Prints medians in ms, and
the median and quartiles of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import hvd_tf as hvd
from hvd_tf.bench.resnet50 import gradient_shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--small", action="store_true")
    found = parser.parse_args()
    hvd.init()
    shapes = [() if found.small else shape for shape in gradient_shapes()]
    tensors = [tf.ones(shape) for shape in shapes]
    steps = 200 if found.small else 10

    @tf.function(autograph=False)
    def step(*gradients: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(x, name=f"gradient.{i}") for i, x in enumerate(gradients)]

    def block_ms() -> float:
        hvd.allreduce(0.0, name="all ranks begin")
        begin_s = time.perf_counter()
        for _ in range(steps):
            step(*tensors)
        return (time.perf_counter() - begin_s) / steps * 1e3

    def traced_ms(directory: str) -> float:
        hvd.start_timeline(Path(directory, "timeline.json"))
        time_ms = block_ms()
        hvd.stop_timeline()
        return time_ms

    block_ms()
    without_ms, with_ms = [], []
    with tempfile.TemporaryDirectory() as directory:
        for pair in range(found.pairs):
            # What comes first has the advantage, or not: by turns.
            if pair % 2:
                with_ms.append(traced_ms(directory))
            without_ms.append(block_ms())
            if not pair % 2:
                with_ms.append(traced_ms(directory))
    ratios = [traced / plain for traced, plain in zip(with_ms, without_ms)]
    if hvd.rank() == 0:
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"without {statistics.median(without_ms):.2f} ms")
        print(f"with    {statistics.median(with_ms):.2f} ms")
        print(f"ratio   {middle:.4f} [{low:.4f} - {high:.4f}]")


if __name__ == "__main__":
    main()
