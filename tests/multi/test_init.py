# SPDX-License-Identifier: Apache-2.0
"""init and its arguments, shutdown, and what is told before and after."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest
import tensorflow as tf

import hvd_tf

OWN_INIT = True
RANKS = (2,)
HOSTS = "2x2"
IN_FULL = (4,)

pytestmark = pytest.mark.usefixtures("world")

FACTS = (
    "rank",
    "size",
    "local_rank",
    "local_size",
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "mpi_threads_supported",
)


@pytest.fixture(scope="module", autouse=True)
def hvd():
    """Not initialised: each test begins and ends that way."""
    return hvd_tf


@pytest.mark.parametrize("fact", FACTS)
def test_before_init(hvd, fact):
    with pytest.raises(ValueError, match="hvd.init"):
        getattr(hvd, fact)()


def test_before_init_of_a_set(hvd):
    with pytest.raises(ValueError, match="hvd.init"):
        hvd.global_process_set.size()
    assert hvd.ProcessSet([0]).size() is None
    assert hvd.process_set_included_op().numpy() == -1
    with pytest.raises(tf.errors.FailedPreconditionError, match="hvd.init"):
        hvd.size_op()
    with pytest.raises(tf.errors.FailedPreconditionError, match="hvd.init"):
        hvd.allreduce(1.0)


def test_what_was_built(hvd):
    assert hvd.mpi_built() is True and hvd.mpi_enabled() is True
    assert hvd.nccl_built() == 0
    for name in ("gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "rocm_built"):
        assert getattr(hvd, name)() is False
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == tuple(range(6))


def test_init_and_shutdown_again_and_again(hvd, world):
    hvd.shutdown()  # does nothing
    for _ in range(5):
        assert not hvd.is_initialized()
        hvd.init()
        hvd.init()  # does nothing
        assert hvd.is_initialized()
        assert (hvd.rank(), hvd.size()) == (world.rank, world.size)
        assert hvd.allreduce(1, op=hvd.Sum).numpy() == world.size
        world.Barrier()  # a rank that has gone fails the others' calls
        hvd.shutdown()
        with pytest.raises(ValueError):
            hvd.rank()


def test_facts(hvd, world):
    hvd.init()
    assert hvd.mpi_threads_supported() is True
    assert hvd.is_homogeneous() is True
    local = 2 if "HVD_HOST_ID" in os.environ else world.size
    assert (hvd.local_rank(), hvd.local_size()) == (world.rank % local, local)
    assert (hvd.cross_rank(), hvd.cross_size()) == (world.rank // local, world.size // local)
    hvd.allreduce(1)


def test_some_of_the_ranks(hvd, world):
    parts = [list(range(0, world.size, 2)), list(range(1, world.size, 2))]
    mine = parts[world.rank % 2]
    hvd.init(comm=mine)
    assert (hvd.rank(), hvd.size()) == (mine.index(world.rank), len(mine))
    got = hvd.allreduce(float(world.rank), op=hvd.Sum)
    assert got.numpy() == sum(mine)
    np.testing.assert_array_equal(hvd.allgather([world.rank]), mine)


def test_a_communicator(hvd, world):
    part = world.Split(world.rank % 2, -world.rank)  # the other way round
    try:
        hvd.init(comm=part)
        assert (hvd.rank(), hvd.size()) == (part.rank, part.size)
        assert hvd.allreduce(1, op=hvd.Sum).numpy() == part.size
        assert hvd.global_process_set.mpi_comm is part
        part.Barrier()
        hvd.shutdown()
    finally:
        part.Free()


def test_process_sets_within_a_communicator_over_mpi(hvd, world, monkeypatch):
    monkeypatch.setenv("HVD_SHM", "0")
    part = world.Split(0, world.rank)
    pairs = [hvd.ProcessSet([first, first + 1]) for first in range(world.size - 1)]
    try:
        hvd.init(comm=part, process_sets=pairs)
        for pair in pairs:
            if pair.included():
                got = hvd.allreduce(world.rank, op=hvd.Sum, process_set=pair, name="pair")
                assert got.numpy() == sum(pair.ranks)
        part.Barrier()
        hvd.shutdown()
    finally:
        part.Free()


def test_process_sets_of_communicators(hvd, world):
    with pytest.raises(NotImplementedError, match="comm="):
        hvd.init(process_sets=[hvd.ProcessSet(world)])
    part = world.Split(world.rank % 2, world.rank)
    try:
        process_set = hvd.ProcessSet(part)
        assert process_set.ranks is None
        hvd.init(comm=world, process_sets=[process_set])
        assert process_set.process_set_id == 1 + world.rank % 2
        assert process_set.ranks == list(range(world.rank % 2, world.size, 2))
        got = hvd.allreduce(float(world.rank), op=hvd.Sum, process_set=process_set)
        assert got.numpy() == sum(process_set.ranks)
        world.Barrier()
        hvd.shutdown()
        assert (process_set.process_set_id, process_set.ranks) == (None, None)
    finally:
        part.Free()


@pytest.mark.parametrize("wrong", ["all", 3, [0, "1"], [0, 0], [-1], {"a": 1}])
def test_what_is_no_comm(hvd, wrong):
    with pytest.raises(ValueError, match="comm="):
        hvd.init(comm=wrong)
    assert not hvd.is_initialized()


def test_a_variable_that_makes_no_sense(hvd, world, monkeypatch):
    monkeypatch.setenv("HVD_FUSION_BYTES", "much")
    with pytest.raises(ValueError, match="HVD_FUSION.*much"):
        hvd.init()
    monkeypatch.undo()
    hvd.init()
    assert hvd.allreduce(1, op=hvd.Sum).numpy() == world.size


def test_the_excepthook_is_lent(hvd, world):
    hvd.shutdown()  # a launched rank has it from the import on
    before = sys.excepthook
    for _ in range(2):
        hvd.init()
        assert sys.excepthook is not before
        world.Barrier()
        hvd.shutdown()
        assert sys.excepthook is before
