# SPDX-License-Identifier: Apache-2.0
"""HVD_HIERARCHICAL_ALLREDUCE=1 with GPUs of two hosts: NCCL adds up on each, MPI between them.

There is no NCCL for the GPU that is made up, so the hosts add up all. With HVD_TEST_GPU=real and
HVD_TEST_NCCL=1 the first test waits until NCCL does it, on the machine's own GPU.
"""

from __future__ import annotations

import os
import time

import fake_gpu
import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

RANKS = ()
GPU = ("2x2",)
OWN_INIT = True

BY_NCCL = os.environ.get(fake_gpu.NCCL_VARIABLE) == "1"


@pytest.fixture(scope="module", autouse=True)
def hvd():
    """With sets of a host each, and of a rank of each host."""
    os.environ["HVD_HIERARCHICAL_ALLREDUCE"] = "1"
    sets = [hvd_tf.ProcessSet(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    hvd_tf.init(process_sets=sets)
    hvd_tf.sets = sets
    yield hvd_tf
    del hvd_tf.sets
    hvd_tf.shutdown()
    del os.environ["HVD_HIERARCHICAL_ALLREDUCE"]


def on_gpu(array, dtype=tf.float32):
    with tf.device("CPU:0"):
        made = tf.cast(tf.constant(np.asarray(array)), dtype)
    with tf.device("GPU:0"):
        return tf.identity(made)


def sent_bytes():
    return hvd_tf.comm_stats()["verbs"].get("allreduce", {}).get("payload_bytes", 0)


def test_nccl_takes_over_on_each_host(rank, size):
    if not BY_NCCL:
        pytest.skip("needs a GPU, and HVD_TEST_NCCL=1")
    count, sent, limit = 1 << 16, [], time.monotonic() + 60
    took = False
    while not took:
        before = sent_bytes()
        total = hvd_tf.allreduce(on_gpu(np.full([count], rank)), op=hvd_tf.Sum, name="over")
        assert total.numpy()[-1] == size * (size - 1) / 2
        sent.append(sent_bytes() - before)
        # Of two ranks of a host each tells the other host half of the sum.
        mine = tf.constant([sent[-1] == 4 * count / 2, time.monotonic() < limit], tf.int32)
        with tf.device("CPU:0"):
            took, waits = hvd_tf.allreduce(mine, op=hvd_tf.Min, name="by NCCL").numpy()
        assert waits, f"NCCL was not ready within a minute: {sent[0]} and {sent[-1]} bytes a sum"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32", "int64"])
def test_ops(rank, size, dtype):
    of_ranks = np.arange(-3, 14) % 7 - 2 + 2 * np.arange(size)[:, None]
    # Few enough that no type's products overflow.
    factors = of_ranks % 3
    cases = [
        (hvd_tf.Sum, of_ranks, np.sum),
        (hvd_tf.Min, of_ranks, np.min),
        (hvd_tf.Max, of_ranks, np.max),
        (hvd_tf.Product, factors, np.prod),
    ]
    if "int" not in dtype:
        cases.append((hvd_tf.Average, of_ranks, np.mean))
    for op, given, of_all in cases:
        with tf.device("GPU:0"):
            found = hvd_tf.allreduce(on_gpu(given[rank], dtype), op=op, name=f"{op} {dtype}")
        assert found.dtype.name == dtype
        want = of_all(given, axis=0)
        np.testing.assert_array_equal(tf.cast(found, tf.float64), want, err_msg=str(op))


def test_scales(rank, size):
    for op, divisor in ((hvd_tf.Sum, 1), (hvd_tf.Average, size)):
        for wire in (hvd_tf.Compression.none, hvd_tf.Compression.fp16):
            with tf.device("GPU:0"):
                found = hvd_tf.allreduce(
                    on_gpu(np.arange(33) + rank),
                    op=op,
                    prescale_factor=0.5,
                    postscale_factor=4.0,
                    compression=wire,
                    name=f"scaled {op} {wire.__name__}",
                )
            want = 2.0 * (size * np.arange(33) + size * (size - 1) / 2) / divisor
            np.testing.assert_array_equal(found, want)


def test_fused_sums_of_any_size(rank, size):
    """Parts of ranks begin within tensors, and some get none of a small one."""
    counts = [0, 1, 2, 3, 5, 127, 128, 129, 4095, 70_001, 300_000, 1, 4]

    @tf.function(autograph=False)
    def step(given):
        with tf.device("GPU:0"):
            return [
                hvd_tf.allreduce(x, op=hvd_tf.Sum, name=f"fused {i}") for i, x in enumerate(given)
            ]

    for round_ in range(8):
        given = [on_gpu(np.arange(count) % 97 + round_ + rank) for count in counts]
        for count, found in zip(counts, step(given)):
            want = size * (np.arange(count) % 97 + round_) + size * (size - 1) / 2
            np.testing.assert_array_equal(found, want.astype(np.float32), f"{count} {round_}")


def test_sets(rank, size):
    """Of one host, and of one rank of each."""
    for number in (rank // 2, 2 + rank % 2):
        process_set = hvd_tf.sets[number]
        for turn in range(30):
            with tf.device("GPU:0"):
                found = hvd_tf.allreduce(
                    on_gpu(np.arange(1000) + rank + turn),
                    op=hvd_tf.Average,
                    process_set=process_set,
                    name=f"of set {number}",
                )
            want = np.arange(1000) + np.mean(process_set.ranks) + turn
            np.testing.assert_array_equal(found, want.astype(np.float32))


def test_other_verbs(rank, size):
    with tf.device("GPU:0"):
        gathered = hvd_tf.allgather(on_gpu(np.full([rank + 1, 2], rank)), name="gathered")
        sent = hvd_tf.broadcast(on_gpu(np.full([5], rank)), size - 1, name="sent")
        exchanged = hvd_tf.alltoall(on_gpu(np.arange(size) + 10 * rank), name="exchanged")
        part = hvd_tf.reducescatter(on_gpu(np.arange(size) + rank), op=hvd_tf.Sum, name="part")
    ranks = np.arange(size)
    np.testing.assert_array_equal(gathered, np.repeat(ranks, ranks + 1)[:, None] * [1, 1])
    np.testing.assert_array_equal(sent, [size - 1] * 5)
    np.testing.assert_array_equal(exchanged, rank + 10 * ranks)
    np.testing.assert_array_equal(part, [size * rank + size * (size - 1) / 2])


def test_a_rank_that_has_joined(rank, size):
    """The others' steps go by the hosts until it comes back."""
    for _ in range(3):
        if rank == 1:
            hvd_tf.join()
            continue
        for step in range(4):
            with tf.device("GPU:0"):
                found = hvd_tf.allreduce(
                    on_gpu([rank + 1.0 + step]), op=hvd_tf.Sum, name=f"without 1, {step}"
                )
            np.testing.assert_array_equal(found, [8 + 3 * step])
        hvd_tf.join()
