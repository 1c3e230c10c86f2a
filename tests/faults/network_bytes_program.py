# SPDX-License-Identifier: Apache-2.0
"""A rank that checks each verb and writes down what its host sends over the network for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from two_hosts import sent_bytes

import hvd_tf as hvd

COUNT = 4 << 20
TIMES = 3


def together() -> None:
    """Returns once all ranks have come here. By then all that was sent before has arrived."""
    hvd.allreduce(np.float32([0]), name="together")


def allreduce(mine: np.ndarray) -> None:
    result = hvd.allreduce(mine, op=hvd.Sum, name="allreduce")
    np.testing.assert_array_equal(result, sum(map(data, range(hvd.size()))))


def allgather(mine: np.ndarray) -> None:
    result = hvd.allgather(mine, name="allgather").numpy()
    np.testing.assert_array_equal(result, np.concatenate([data(r) for r in range(hvd.size())]))


def broadcast(mine: np.ndarray) -> None:
    np.testing.assert_array_equal(hvd.broadcast(mine, 1, name="broadcast"), data(1))


def data(rank: int) -> np.ndarray:
    return np.arange(COUNT, dtype=np.float32) % 1000 + rank


def sent_for(verb: Callable[[np.ndarray], None], mine: np.ndarray) -> float:
    """Bytes that this host sends for one call, as a multiple of the tensor's."""
    verb(mine)  # connections are made
    together()
    before = sent_bytes()
    for _ in range(TIMES):
        verb(mine)
    together()
    return (sent_bytes() - before) / TIMES / mine.nbytes


def main(directory: Path) -> None:
    hvd.init()
    mine = data(hvd.rank())
    facts: dict[str, float | int] = {
        "local_rank": hvd.local_rank(),
        "local_size": hvd.local_size(),
        "cross_rank": hvd.cross_rank(),
        "cross_size": hvd.cross_size(),
    }
    for verb in (allreduce, allgather, broadcast):
        facts[verb.__name__] = sent_for(verb, mine)
    (directory / f"facts-{hvd.rank()}.json").write_text(json.dumps(facts))
    hvd.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
