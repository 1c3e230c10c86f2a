# SPDX-License-Identifier: Apache-2.0
"""Registers process sets: those of `init`, and those that are added and removed afterwards."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Optional, Union

from hvd_tf._internal import native
from hvd_tf.process_sets import ProcessSet, global_process_set, ids_and_ranks

_registered: list[ProcessSet] = []  # all objects that have an id, but for global_process_set


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Registers a process set after `init`. A collective call of all ranks of the job.

    Every rank makes the same calls of `add_process_set` and `remove_process_set` in the same
    order, whether it is a member or not. Collectives may go on meanwhile. The call returns when
    all ranks have made it. Where it raises, the set exists on no rank.

    Args:
      process_set: a ProcessSet of ranks that is not registered, or a list of ranks of the job.

    Returns:
      The registered set. Its id is the lowest that no set has, so ids of removed sets come
      again.

    Raises:
      ValueError: the job was not started with `init(process_sets="dynamic")` or
        HVD_DYNAMIC_PROCESS_SETS=1; hvd is not initialised; the ranks differ from rank to
        rank, are those of another set or of all ranks, or one rank's argument is no set.
      NotImplementedError: it is made of a communicator.
      MemoryError: a member has no shared memory for it. Names the rank and HVD_SHM_BYTES.
      RuntimeError: a rank has ended.
    """
    _check_dynamic("add_process_set")
    error: Optional[Exception] = None
    ranks: list[int] = []
    try:
        process_set, ranks = _new_set(process_set)
    except (ValueError, NotImplementedError) as raised:
        error = raised
    set_id = ctypes.c_int(0)
    # The others wait for this rank, so they must hear of its mistake.
    code = native.lib.hvd_add_process_set(
        native.int_array(ranks),
        len(ranks),
        str(error).encode() if error is not None else None,
        ctypes.byref(set_id),
    )
    if isinstance(error, NotImplementedError):
        raise error
    native.check(code)
    assert isinstance(process_set, ProcessSet)
    process_set.process_set_id = set_id.value
    _registered.append(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a process set away. A collective call of all ranks of the job, members or not.

    What its members have all asked for still completes. What one of them lacks fails. So does
    every later call that names the set, also in graphs that are traced already. Once another set
    has its id, such a graph would use that set.

    Args:
      process_set: it may come from `init` or from `add_process_set`.

    Returns:
      True, and `process_set.process_set_id` is None. False where it is `global_process_set` or
      not registered: nothing was done.

    Raises:
      ValueError: the job was not started with `init(process_sets="dynamic")` or
        HVD_DYNAMIC_PROCESS_SETS=1; hvd is not initialised; the ranks remove different sets.
      RuntimeError: a rank has ended.
    """
    if not isinstance(process_set, ProcessSet):
        raise ValueError(f"remove_process_set takes a ProcessSet, not {process_set!r}")
    set_id = process_set.process_set_id
    if process_set is global_process_set or set_id is None:
        return False
    _check_dynamic("remove_process_set")
    if native.lib.hvd_process_set_size(set_id) == native.UNKNOWN_PROCESS_SET:
        return False
    native.check(native.lib.hvd_remove_process_set(set_id))
    _forget([one for one in _registered if one.process_set_id == set_id])
    return True


def forget_all() -> None:
    """hvd ends here. A later `init` knows none of the sets, and gives their ids to others."""
    _forget(list(_registered))


def _forget(process_sets: list[ProcessSet]) -> None:
    for process_set in process_sets:
        process_set.process_set_id = None
        if process_set.mpi_comm is not None:
            process_set.ranks = None
    _registered[:] = [one for one in _registered if one.process_set_id is not None]


def recognise(process_sets: Sequence[Union[ProcessSet, Sequence[int]]]) -> None:
    """What `init` does with its sets where hvd runs: gives them the ids of sets with their ranks.

    Raises:
      ValueError: an entry is not a process set, or is not registered. It names the entry.
    """
    sets = [_as_process_set(i, entry) for i, entry in enumerate(process_sets)]
    ids = {tuple(ranks): set_id for set_id, ranks in ids_and_ranks().items() if set_id != 0}
    new = [(i, one) for i, one in enumerate(sets) if one.process_set_id is None]
    for index, process_set in new:
        if process_set.ranks is None or tuple(process_set.ranks) not in ids:
            raise ValueError(
                f"process_sets[{index}], {process_set}, is not registered, and hvd runs already: "
                "pass it to the first hvd.init, or call hvd.shutdown before this one, or "
                'hvd.add_process_set after hvd.init(process_sets="dynamic")'
            )
    for _, process_set in new:
        assert process_set.ranks is not None
        process_set.process_set_id = ids[tuple(process_set.ranks)]
        if any(process_set is entry for entry in process_sets):  # else nobody else has it
            _registered.append(process_set)


def _check_dynamic(name: str) -> None:
    if not native.known(native.lib.hvd_has_dynamic_process_sets()):
        raise ValueError(
            f"{name} needs HVD_DYNAMIC_PROCESS_SETS=1 on every rank, or "
            'hvd.init(process_sets="dynamic")'
        )


def _new_set(process_set: Any) -> tuple[ProcessSet, list[int]]:
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set is global_process_set or process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is registered already; use it as it is")
    if process_set.ranks is None:
        raise NotImplementedError(
            "add_process_set takes ranks, not a communicator: the ranks' communicators may differ; "
            "make one set after another from ranks"
        )
    return process_set, process_set.ranks


class Registration:
    """The process sets of one init: what to register, and which object gets which id."""

    def __init__(self, process_sets: Sequence[Union[ProcessSet, Sequence[int]]], comm: Any) -> None:
        """`comm`: the mpi4py communicator given to init, or None.

        Raises:
          ValueError: an entry is not a process set, or a set occurs twice. It names the entry.
          NotImplementedError: an entry is made of a communicator and init got none.
        """
        self._sets = [_as_process_set(i, entry) for i, entry in enumerate(process_sets)]
        self._ids: list[int] = []  # of each entry
        self.ranks: list[list[int]] = []  # of each id from 1
        entry_of: dict[tuple[int, ...], int] = {}
        for index, process_set in enumerate(self._sets):
            mine, all_ranks = _members(process_set, comm)
            for ranks in all_ranks:
                first = entry_of.setdefault(tuple(ranks), index)
                if first != index:
                    self._refuse_duplicate(ranks, first, index)
                self.ranks.append(ranks)
            self._ids.append(self.ranks.index(mine) + 1)

    def _refuse_duplicate(self, ranks: list[int], first: int, second: int) -> None:
        for process_set in self._sets:
            process_set.process_set_id = None
        raise ValueError(
            f"process_sets[{second}] has the same ranks {ranks} as process_sets[{first}]; list "
            "each set of ranks once"
        )

    def assign(self) -> None:
        """Gives the process sets their ids and ranks, once the runtime has registered them."""
        for process_set, set_id in zip(self._sets, self._ids):
            process_set.process_set_id = set_id
            process_set.ranks = list(self.ranks[set_id - 1])
        _registered.extend(self._sets)


def _as_process_set(index: int, entry: Any) -> ProcessSet:
    if isinstance(entry, ProcessSet):
        if entry is global_process_set:
            raise ValueError(
                f"process_sets[{index}] is global_process_set, which is always registered; "
                "leave it out"
            )
        return entry
    try:
        return ProcessSet(entry)
    except ValueError as error:
        raise ValueError(f"process_sets[{index}]: {error}") from None


def _members(process_set: ProcessSet, comm: Any) -> tuple[list[int], list[list[int]]]:
    """This rank's set, and the different sets that the ranks' communicators describe.

    After a Split, the same variable has different communicators on different ranks. All of them
    become sets, in the order of their lowest ranks.
    """
    if process_set.mpi_comm is None:
        assert process_set.ranks is not None
        return process_set.ranks, [process_set.ranks]
    if comm is None:
        raise NotImplementedError(
            "a ProcessSet made of a communicator needs hvd.init(comm=...) with the mpi4py "
            "communicator that it is a part of, such as MPI.COMM_WORLD"
        )
    part = process_set.mpi_comm.Get_group()
    whole = comm.Get_group()
    mine = sorted(type(part).Translate_ranks(part, list(range(part.Get_size())), whole))
    part.Free()
    whole.Free()
    if any(rank < 0 for rank in mine):
        raise ValueError(f"the communicator of {process_set} has ranks outside of init's comm")
    everyones = comm.allgather(mine)
    return mine, [list(ranks) for ranks in sorted({tuple(ranks) for ranks in everyones})]
