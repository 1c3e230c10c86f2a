# SPDX-License-Identifier: Apache-2.0
"""Which records each rank sees at each global step.

The sampling is defined on the global batch: every pass is a seeded shuffle, the passes follow one
another, and global step s takes the next P * b records, of which rank r takes the r-th slice of b.
So P ranks with b records each see the same batches as one rank with P * b, no record goes to two
ranks, and every rank has the same number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def steps_of(passes: float, records: int, batch: int, size: int) -> int:
    """Global steps in this many passes, with `batch` records on each of `size` ranks."""
    return int(passes * records) // (batch * size)


def shuffle(records: int, seed: int, epoch: int) -> np.ndarray:
    """int64 [records]: the order of one pass."""
    return np.random.default_rng([seed, epoch]).permutation(records)


def positions(
    records: int, batch: int, *, seed: int, rank: int = 0, size: int = 1
) -> Iterator[np.ndarray]:
    """Endless batches for one rank: int64 [batch], positions among `records`, step after step."""
    start = rank * batch
    passes: dict[int, np.ndarray] = {}
    while True:
        stream = np.arange(start, start + batch)
        epoch, offset = stream // records, stream % records
        touched = range(epoch[0], epoch[-1] + 1)  # a batch may end one pass and begin the next
        passes = {
            one: passes[one] if one in passes else shuffle(records, seed, one) for one in touched
        }
        yield np.concatenate([passes[one][offset[epoch == one]] for one in touched])
        start += batch * size
