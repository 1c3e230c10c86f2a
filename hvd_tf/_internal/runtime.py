# SPDX-License-Identifier: Apache-2.0
"""init, restart and shutdown. Other modules find rank, size and the like here too."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Union

from hvd_tf._internal import (
    exit_status,
    failure,
    intel_fabric,
    launched,
    lineage,
    mpi_start,
    native,
    new_starts,
    notices,
    presence,
    stacks,
)
from hvd_tf._internal.features import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    has_gpu_lane,
    mpi_built,
    mpi_enabled,
    nccl_built,
    rocm_built,
)
from hvd_tf._internal.nccl import load_nccl
from hvd_tf._internal.op_names import mark_init_thread
from hvd_tf._internal.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from hvd_tf._internal.registration import (
    Registration,
    add_process_set,
    forget_all,
    recognise,
    remove_process_set,
)
from hvd_tf._internal.world import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_threads_supported,
    rank,
    size,
)
from hvd_tf.process_sets import ProcessSet, global_process_set, is_communicator

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
]

_lib = native.lib
_initialised_by = 0  # the process id
_completed = 0  # calls of init() for all ranks that have succeeded
_latest_arguments: tuple[Any, Any] = (None, None)  # of init


def init(
    comm: Union[None, Sequence[int], Any] = None,
    process_sets: Union[None, str, Sequence[Union[ProcessSet, Sequence[int]]]] = None,
) -> None:
    """Starts hvd on every rank of the job. If it runs already, it goes on as it is.

    Args:
      comm: the ranks that make up the job: None for all that the launcher started, a list of
        their world ranks, or an mpi4py communicator.
      process_sets: sets that collectives may run on beside `global_process_set`, the same on
        every rank. They get the ids 1, 2, ... in this order. "dynamic": none yet, but
        `add_process_set` and `remove_process_set` can be called, as with
        HVD_DYNAMIC_PROCESS_SETS=1. If hvd runs already, no set is registered: they get the ids
        of sets with the same ranks.

    Raises:
      ValueError: an argument or an HVD_* variable is wrong, or hvd runs already and does not know
        one of the sets. Names it.
      NotImplementedError: a process set is made of a communicator and `comm` is none.
      RuntimeError: peers or MPI could not be reached, or a rank has started this process.
    """
    is_dynamic = process_sets == "dynamic"
    if not is_initialized():
        failure.install()  # peers may wait here for this rank
    if isinstance(process_sets, str) and not is_dynamic:
        raise ValueError(f'process_sets={process_sets!r}: pass a list of ProcessSet, or "dynamic"')
    sets: Any = [] if is_dynamic else process_sets or []
    if is_initialized():
        recognise(sets)
        return
    lineage.check()
    communicator: Any = comm if is_communicator(comm) else None
    world_ranks = [] if communicator is not None else _world_ranks(comm)
    registration = Registration(sets, communicator)
    launched_rank = launched.rank()
    global _completed
    of_some = comm is not None
    notices.write(notices.STARTED, launched_rank, of_some=of_some, completed=_completed)
    presence.begin(launched_rank)
    lineage.claim()
    global _initialised_by
    _initialised_by = os.getpid()
    ranks = [rank for members in registration.ranks for rank in members]
    mapped = mpi_start.mapped_files()
    try:
        with mpi_start.quick(mapped), intel_fabric.findable(mapped):
            native.check(
                _lib.hvd_init(
                    native.int_array(world_ranks),
                    len(world_ranks) if world_ranks else -1,
                    int(communicator is not None),
                    communicator.py2f() if communicator is not None else 0,
                    native.int_array(ranks),
                    native.int_array([len(members) for members in registration.ranks]),
                    len(registration.ranks),
                    int(is_dynamic),
                )
            )
    except BaseException:
        notices.write(notices.RETURNED, launched_rank)
        raise
    _completed += not of_some
    mark_init_thread()
    if has_gpu_lane():
        load_nccl()
    if size() > 1:
        stacks.start()
    elif launched.size() == 1:
        failure.uninstall()
    registration.assign()
    global_process_set.ranks = list(range(size()))
    global_process_set.mpi_comm = communicator
    global _latest_arguments
    _latest_arguments = comm, process_sets


def restart() -> None:
    """`shutdown`, then `init` with the arguments that it had. A collective call of all ranks.

    Peers that wait for this rank fail, so that they come here too.

    Raises:
      RuntimeError: a peer has left for good, or peers could not be reached.
    """
    try:
        native.check(_lib.hvd_shutdown_to_restart())
    finally:
        # sys.excepthook stays ours, because peers may wait in init for this rank.
        forget_all()
        stacks.stop()
    new_starts.begin()
    init(*_latest_arguments)


def _world_ranks(comm: Any) -> list[int]:
    if comm is None:
        return []
    is_list = isinstance(comm, Sequence) and not isinstance(comm, (str, bytes))
    if not is_list or not all(isinstance(rank, Integral) for rank in comm):
        raise ValueError(
            f"comm={comm!r}: pass None, a list of world ranks, or an mpi4py communicator"
        )
    ranks = [int(rank) for rank in comm]
    if len(set(ranks)) != len(ranks) or any(rank < 0 for rank in ranks):
        raise ValueError(f"comm={comm!r}: list each world rank once")
    return ranks


def shutdown() -> None:
    """Ends hvd on this rank. Pending and later operations fail here and on peers that need it.

    Does not wait for peers and does not end MPI. `init` works again afterwards. It does not know
    the process sets; pass them to it, or add them again. sys.excepthook is what it was before.
    """
    _lib.hvd_shutdown()
    presence.end()
    forget_all()
    failure.uninstall()
    stacks.stop()


def _at_exit() -> None:
    if _initialised_by == os.getpid():  # not in a forked child
        status = exit_status.status()
        notices.write(notices.LEAVING, launched.rank(), status=status, completed=_completed)
        presence.end()
    _lib.hvd_at_exit()


# An exception may come before init, where peers wait already.
if launched.size() > 1:
    failure.install()
    exit_status.watch()

# Registered when this module is imported, so that handlers of the program, which are registered
# later and run earlier, still find MPI alive. mpi4py finalises after all of Python's handlers.
atexit.register(_at_exit)
