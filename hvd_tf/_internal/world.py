# SPDX-License-Identifier: Apache-2.0
"""This process in the job: rank, size and hosts."""

from __future__ import annotations

from hvd_tf._internal import native

_lib = native.lib


def is_initialized() -> bool:
    """Whether `init` was called and `shutdown` was not since."""
    return bool(_lib.hvd_is_initialized())


# The following raise ValueError before init.


def rank() -> int:
    """The number of this process in the job, from 0."""
    return native.known(_lib.hvd_rank())


def size() -> int:
    """The number of processes in the job."""
    return native.known(_lib.hvd_size())


def local_rank() -> int:
    """The number of this process among those of its host, from 0."""
    return native.known(_lib.hvd_local_rank())


def local_size() -> int:
    """The number of processes on this host."""
    return native.known(_lib.hvd_local_size())


def cross_rank() -> int:
    """The number of this process's host, among the hosts with a process of this local rank."""
    return native.known(_lib.hvd_cross_rank())


def cross_size() -> int:
    """The number of hosts with a process of this local rank."""
    return native.known(_lib.hvd_cross_size())


def is_homogeneous() -> bool:
    """Whether every host has the same number of processes."""
    return bool(native.known(_lib.hvd_is_homogeneous()))


def mpi_threads_supported() -> bool:
    """Whether MPI was initialised with MPI_THREAD_MULTIPLE."""
    return bool(native.known(_lib.hvd_mpi_threads_supported()))
