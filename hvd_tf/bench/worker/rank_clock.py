# SPDX-License-Identifier: Apache-2.0
"""Times calls that all ranks make together: warm-up, number of repetitions, barriers."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import rank_counts
import tensorflow as tf


class Clock:
    """Measures cases with a module such as horovod.tensorflow. Every rank must do the same."""

    def __init__(self, module: Any, seconds: float) -> None:
        """`seconds`: about how long all timed calls of a case may take."""
        self._module = module
        self._seconds = seconds
        one = tf.ones([1])

        @tf.function(autograph=False)
        def barrier(tensor: tf.Tensor) -> tf.Tensor:
            return module.allreduce(tensor, name="bench.barrier", op=module.Sum)

        self._barrier = lambda: barrier(one)
        # TensorFlow's own objects stay. A pass over all of them takes a good part of a second.
        gc.collect()
        gc.freeze()

    def start(self, calls: Any) -> None:
        """Makes the first calls, which are slower, and checks what the verb returns."""
        calls.check(calls.verb())
        calls.plain()

    def measure(self, calls: Any) -> dict[str, list[float]]:
        """Seconds of each call, the mean over the ranks: "times_s", and "plain_s" of the plain one.


        A slow rank's time is part of the others' times too, because they wait for it. NCCL's tests
        take the mean too, by default.
        """
        return {"times_s": self._times(calls.verb), "plain_s": self._times(calls.plain)}

    def _times(self, call: Callable[[], Any]) -> list[float]:
        estimate_s = statistics.median(self._repeat(call, rank_counts.WARM_UP_CALLS))
        wanted = rank_counts.calls_within(self._seconds, estimate_s)
        # The ranks' estimates differ, but the number of calls must not.
        count = self._module.broadcast(
            tf.constant([wanted], tf.int32), root_rank=0, name="bench.count"
        )
        mine = tf.constant(self._repeat(call, int(count[0])), tf.float64)
        mean = self._module.allreduce(
            mine, name=f"bench.times.{len(mine)}", op=self._module.Average
        )
        return mean.numpy().tolist()

    def _repeat(self, call: Callable[[], Any], count: int) -> list[float]:
        times_s = []
        gc.collect()
        gc.disable()
        try:
            for _ in range(count):
                self._barrier()
                start_s = time.perf_counter()
                result = call()
                times_s.append(time.perf_counter() - start_s)
                # The result is freed before the next call takes memory for its own, as in a
                # training loop.
                del result
        finally:
            gc.enable()
        return times_s
