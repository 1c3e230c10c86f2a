# SPDX-License-Identifier: Apache-2.0
"""Bandwidths as NCCL's tests define them, so that they can be compared with published ones.

The source is the file doc/PERFORMANCE.md of https://github.com/NVIDIA/nccl-tests. A size S is what
a rank has when the verb is done. For allgather and alltoall that is all ranks' parts together, for
reducescatter what a rank has given. The bus bandwidth is the rate at which the slowest link must
have worked, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

# For each verb: the bytes that cross a rank's link for each byte of S, among n ranks.
FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "barrier": lambda n: 0.0,
}


def algbw_gb_s(size_bytes: int, time_s: float) -> float:
    """The algorithm bandwidth S / t in GB/s (10^9 bytes a second)."""
    return size_bytes / time_s / 1e9


def busbw_gb_s(verb: str, ranks: int, size_bytes: int, time_s: float) -> float:
    """The bus bandwidth in GB/s (10^9 bytes a second). 0 for one rank, which moves nothing."""
    return algbw_gb_s(size_bytes, time_s) * FACTORS[verb](ranks)
