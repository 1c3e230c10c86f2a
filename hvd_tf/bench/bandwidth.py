# SPDX-License-Identifier: Apache-2.0
"""Bandwidths as NCCL's tests define them, so that they compare with what others publish.

Source: the file doc/PERFORMANCE.md of https://github.com/NVIDIA/nccl-tests. A size S there is what
a rank holds when the verb is done, for allgather and alltoall all ranks' parts together. The bus
bandwidth is the rate at which the slowest link must have worked, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

# For each verb, the bytes that cross a rank's link for each byte of S, among n ranks.
# alltoall and reducescatter stand here for the day when the library has them.
FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
}


def algbw_gb_s(size_bytes: int, time_s: float) -> float:
    """The algorithm bandwidth S / t in GB/s (10^9 bytes a second)."""
    return size_bytes / time_s / 1e9


def busbw_gb_s(verb: str, ranks: int, size_bytes: int, time_s: float) -> float:
    """The bus bandwidth in GB/s (10^9 bytes a second); 0 where one rank moves nothing."""
    return algbw_gb_s(size_bytes, time_s) * FACTORS[verb](ranks)
