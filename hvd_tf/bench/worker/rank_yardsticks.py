# SPDX-License-Identifier: Apache-2.0
"""Yardsticks that need no TensorFlow: a copy within memory, and MPI's own allreduce in place.

All ranks copy at the same time, as they do within a verb.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rank_counts


def measure(plan: dict[str, Any], files: Any) -> None:
    """Takes a turn for every size: "memcpy SIZE" and, with mpi4py, "mpi_allreduce SIZE"."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # not installed, or without an MPI
        comm = None
        words = f"no MPI_Allreduce: {error}".splitlines()[0]
        files.ready(_rank() == 0, {"mpi4py": words})
    else:
        comm = MPI.COMM_WORLD
        comm.Barrier()
        version = MPI.Get_library_version().split(",")[0].strip("\0 \n")
        files.ready(comm.Get_rank() == 0, {"mpi": version})
    for size_bytes in plan["sizes_bytes"]:
        files.wait_for_turn()
        # Zeros, because sums that are summed again would overflow. They are written, because else
        # all pages are one.
        given = np.full(size_bytes // 4, 0, np.float32)
        taken = np.ones_like(given)
        copy = functools.partial(np.copyto, taken, given)
        entries = {f"memcpy {size_bytes}": {"times_s": _times(comm, plan["seconds"], copy)}}
        if comm is not None:
            add = functools.partial(comm.Allreduce, MPI.IN_PLACE, given, MPI.SUM)
            times_s = _times(comm, plan["seconds"], add)
            entries[f"mpi_allreduce {size_bytes}"] = {"times_s": times_s}
        files.end_turn(entries)


def _rank() -> int:
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def _times(comm: Any, seconds: float, call: Callable[[], Any]) -> list[float]:
    """Seconds of each call. If the ranks can exchange them, the mean over the ranks."""
    estimate_s = statistics.median(_repeat(comm, call, rank_counts.WARM_UP_CALLS))
    count = rank_counts.calls_within(seconds, estimate_s)
    if comm is not None:
        count = comm.bcast(count)
    times_s = np.array(_repeat(comm, call, count))
    if comm is not None:
        times_s = comm.allreduce(times_s) / comm.Get_size()
    return times_s.tolist()


def _repeat(comm: Any, call: Callable[[], Any], count: int) -> list[float]:
    times_s = []
    for _ in range(count):
        if comm is not None:
            comm.Barrier()
        start_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - start_s)
    return times_s
