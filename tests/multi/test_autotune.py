# SPDX-License-Identifier: Apache-2.0
"""Autotune changes no bit of a result, says what it has found, and refuses what it cannot do."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

OWN_INIT = True
RANKS = (2,)
HOSTS = "2x2"
IN_FULL = (3,)

pytestmark = pytest.mark.usefixtures("world")

SHAPES = [(1,), (700, 9), (33,), (40000,), (5, 5, 5), (16384,), (20000, 2)] * 4
# Small values at first, so that there is something to find. Few samples: this measures nothing.
SMALL = {
    "HVD_FUSION_BYTES": "65536",
    "HVD_CHUNK_BYTES": "8192",
    "HVD_SHM_CHUNK_BYTES": "8192",
    "HVD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HVD_AUTOTUNE_SAMPLES": "10",
}


@pytest.fixture(scope="module", autouse=True)
def hvd():
    """Not initialised: each test begins and ends that way."""
    return hvd_tf


@pytest.fixture
def log() -> Path:
    """One path for all ranks."""
    return Path(os.environ["HVD_TEST_DIR"], "autotune.csv")


def train(until) -> tuple[list[np.ndarray], int]:
    """Trains until `until(steps)`. Returns the weights and the number of steps.

    The weights depend on the order of every sum.

    Element by element: what several threads add up could differ from run to run by itself.
    """
    rank = hvd_tf.rank()
    generator = np.random.default_rng(5)
    start = [generator.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    variables = [tf.Variable(value) for value in start]

    @tf.function(autograph=False)
    def step(number: tf.Tensor) -> None:
        factor = tf.cast(number % 7 + 1, tf.float32) * (0.3 + rank)
        for i, variable in enumerate(variables):
            gradient = tf.math.tanh(variable * factor + i)
            reduced = hvd_tf.allreduce(gradient, name=f"gradient.{i}", op=hvd_tf.Average)
            variable.assign_sub(0.1 * reduced)

    steps = 0
    while not until(steps):
        step(tf.constant(steps))
        steps += 1
    return [variable.numpy() for variable in variables], steps


def test_the_bits_are_the_same_and_the_values_are_told(hvd, world, log, monkeypatch, capfd):
    for name, value in {**SMALL, "HVD_AUTOTUNE": "1", "HVD_AUTOTUNE_LOG": str(log)}.items():
        monkeypatch.setenv(name, value)

    def settled(_: int) -> bool:
        told = world.rank == 0 and ",final," in log.read_text()
        return world.bcast(told)

    hvd.init()
    tuned, steps = train(settled)
    on_one_host = hvd.cross_size() == 1
    hvd.shutdown()
    monkeypatch.setenv("HVD_AUTOTUNE", "0")
    hvd.init()
    plain, _ = train(lambda done: done == steps)
    for ours, expected in zip(tuned, plain):
        np.testing.assert_array_equal(ours.view(np.int32), expected.view(np.int32))

    errors = capfd.readouterr().err
    assert ("autotune has settled" in errors) == (world.rank == 0)
    if world.rank > 0:
        return
    with log.open() as file:
        lines = list(csv.DictReader(file))
    assert [line["kind"] for line in lines[:2]] == ["warmup", "sample"]
    assert [int(line["sample"]) for line in lines] == list(range(1, len(lines) + 1))
    assert len(lines) <= 12
    for line in lines[:2]:
        assert line["fusion_bytes"] == "65536" and line["batches_in_flight"] == "4"
    assert len({line["fusion_bytes"] for line in lines}) > 1
    assert all(float(line["mb_per_s"]) > 0 for line in lines)
    final = lines[-1]
    assert f" HVD_FUSION_BYTES={final['fusion_bytes']}" in errors
    assert f" HVD_BATCHES_IN_FLIGHT={final['batches_in_flight']}" in errors
    if on_one_host:
        assert f" HVD_SHM_CHUNK_BYTES={final['chunk_bytes']}" in errors
        assert len({line["chunk_bytes"] for line in lines}) > 1


def test_it_settles_in_a_loop_in_a_graph(hvd, world, log, monkeypatch):
    """All iterations of a call run the same nodes."""
    for name, value in {**SMALL, "HVD_AUTOTUNE": "1", "HVD_AUTOTUNE_LOG": str(log)}.items():
        monkeypatch.setenv(name, value)
    hvd.init()

    @tf.function
    def train_for(steps: tf.Tensor) -> tf.Tensor:
        weight = tf.constant(1.0)
        for _ in tf.range(steps):
            reduced = [
                hvd.allreduce(weight * tf.ones(shape), op=hvd.Average, name=f"gradient.{i}")
                for i, shape in enumerate(SHAPES[:7])
            ]
            weight = tf.add_n([gradient[tuple([0] * gradient.shape.rank)] for gradient in reduced])
            weight /= 7.0
        return weight

    steps = tf.constant(50)
    # 12 samples at most, of 20 ms and two steps at least.
    for _ in range(40):
        np.testing.assert_allclose(train_for(steps).numpy(), 1.0, rtol=1e-5)
        told = world.rank == 0 and ",final," in log.read_text()
        if world.bcast(told):
            break
    else:
        pytest.fail("autotune has not settled in 2000 steps")


def test_a_log_that_cannot_be_written_is_refused_on_every_rank(hvd, monkeypatch):
    monkeypatch.setenv("HVD_AUTOTUNE", "1")
    monkeypatch.setenv("HVD_AUTOTUNE_LOG", "/nowhere/autotune.csv")
    with pytest.raises(ValueError, match="HVD_AUTOTUNE_LOG='/nowhere/autotune.csv' cannot be .*0"):
        hvd.init()
    monkeypatch.setenv("HVD_AUTOTUNE", "0")
    hvd.init()
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == hvd.size()


def test_ranks_that_disagree_are_all_refused(hvd, world, monkeypatch):
    monkeypatch.setenv("HVD_AUTOTUNE", "1" if world.rank == 1 else "0")
    with pytest.raises(ValueError, match="HVD_AUTOTUNE"):
        hvd.init()
