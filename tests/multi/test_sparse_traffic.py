# SPDX-License-Identifier: Apache-2.0
"""What sparse gradients send against other ways: those of click logs, and the worst there are.

A way's payload is that of all ranks. Where every rank gathers all rows, as Horovod does, a rank
sends its rows and their ids to each of the others. An allreduce of the whole table sends twice the
table, less a part for each rank.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf as hvd

RANKS = (2, 4)

WIDTH = 16
ROW_BYTES, ID_BYTES = 4 * WIDTH, 8
BATCH = 8192
# How many values the 26 categories of Criteo's public data (Kaggle, 2014) have.
CRITEO = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992,
    5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip


def zipf(rng, exponent, rows, count):
    """int64 [count]: 0 to rows - 1, by the inverse of Zipf's distribution as an integral."""
    power = 1 - exponent
    low, high = 0.5**power, (rows + 0.5) ** power
    drawn = (low + rng.uniform(size=count) * (high - low)) ** (1 / power)
    return np.clip(np.round(drawn), 1, rows).astype(np.int64) - 1


def gradients(tables, rank):
    """For tables of (ids of this rank, rows of the table). The values do not matter."""
    return [
        tf.IndexedSlices(tf.fill([len(ids), WIDTH], rank + 1.0), ids, [rows, WIDTH])
        for ids, rows in tables
    ]


def sent(tables, rank, name):
    """The payload of all ranks for one step."""
    before = hvd.comm_stats()["verbs"]["sparse_allreduce"]["payload_bytes"]
    hvd.grouped_allreduce(gradients(tables, rank), op=hvd.Sum, name=name)
    after = hvd.comm_stats()["verbs"]["sparse_allreduce"]["payload_bytes"]
    return sum(hvd.allgather_object(after - before))


def gathered_bytes(tables, size):
    """What Horovod sends: all rows of each rank to each other one, twice where they are twice."""
    mine = sum(len(ids) * (ROW_BYTES + ID_BYTES) for ids, _ in tables)
    return (size - 1) * sum(hvd.allgather_object(mine))


def dense_bytes(tables, size):
    return 2 * (size - 1) * sum(rows * ROW_BYTES for _, rows in tables)


@pytest.mark.parametrize(
    ("exponent", "most"), [(0.8, {4: 0.34}), (1.05, {2: 0.22, 4: 0.20}), (1.2, {4: 0.12})]
)
def test_click_logs(exponent, most, rank, size):
    rng = np.random.default_rng([7, rank])
    tables = [(zipf(rng, exponent, rows, BATCH), rows) for rows in CRITEO]
    share = sent(tables, rank, f"clicks {exponent}") / gathered_bytes(tables, size)
    assert share <= most.get(size, 1.0)


def own_rows(rank, size, rows):
    """Rows that no other rank has, none twice."""
    return np.arange(rank, rows, size, dtype=np.int64)


@pytest.mark.parametrize("case", ["distinct", "all", "all_twice", "three_rows"])
def test_never_more_than_the_better_of_gather_and_dense(case, rank, size):
    rows = 3 if case == "three_rows" else 4096
    ids = {
        "distinct": own_rows(rank, size, rows),
        "all": np.arange(rows),
        "all_twice": np.repeat(np.arange(rows), 2),
        "three_rows": np.arange(500) % 3,
    }[case]
    tables = [(ids.astype(np.int64), rows)]
    better = min(gathered_bytes(tables, size), dense_bytes(tables, size))
    assert sent(tables, rank, case) <= 1.02 * better


def test_control_bytes(rank, size):
    """In the steady state, where names have numbers."""
    rng = np.random.default_rng([3, rank])

    def step():
        tables = [(rng.integers(0, rows, 64), rows) for rows in CRITEO]
        for i, gradient in enumerate(gradients(tables, rank)):
            hvd.allreduce(gradient, op=hvd.Sum, name=f"controlled {i}")

    step()
    before = hvd.comm_stats()["control_bytes_sent"]
    for _ in range(5):
        step()
    each = (hvd.comm_stats()["control_bytes_sent"] - before) / (5 * len(CRITEO))
    assert max(hvd.allgather_object(each)) <= 64
