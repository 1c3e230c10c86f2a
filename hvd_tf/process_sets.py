# SPDX-License-Identifier: Apache-2.0
"""Process sets: groups of ranks that run collectives among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple, Optional, Union

from hvd_tf._internal import native

_UNKNOWN = -2
_NOT_A_MEMBER = -3


class ProcessSet:
    """Some of the job's ranks. Pass it to `init(process_sets=...)`, then to collectives.

    Attributes:
        process_set_id: a small int, the same on every rank; None until init has registered it.
        ranks: the members' ranks in the job, ascending; None for a communicator before init.
        mpi_comm: the mpi4py communicator it was made of, or None.
    """

    def __init__(self, ranks_or_comm: Union[Sequence[int], Any]) -> None:
        """`ranks_or_comm`: ranks of the job in any order, or an mpi4py communicator.

        Raises:
            ValueError: an entry is not an int, an entry occurs twice, or there is no entry.
        """
        self.process_set_id: Optional[int] = None
        self.ranks: Optional[list[int]] = None
        self.mpi_comm: Any = None
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = _checked_ranks(ranks_or_comm)

    def size(self) -> Optional[int]:
        """The number of members. None before the set is registered.

        Raises:
            ValueError: hvd is not initialised, or the set is not of this init.
        """
        if self.process_set_id is None:
            return None
        return self._known(native.lib.hvd_process_set_size(self.process_set_id))

    def rank(self) -> Optional[int]:
        """This process's place among the members, -1 for a non-member. None before registration.

        Raises:
            ValueError: hvd is not initialised, or the set is not of this init.
        """
        if self.process_set_id is None:
            return None
        value = native.lib.hvd_process_set_rank(self.process_set_id)
        return -1 if value == _NOT_A_MEMBER else self._known(value)

    def included(self) -> Optional[bool]:
        """Whether this process is a member. None before registration.

        Raises:
            ValueError: hvd is not initialised, or the set is not of this init.
        """
        rank = self.rank()
        return None if rank is None else rank >= 0

    def _known(self, value: int) -> int:
        if value == _UNKNOWN:
            raise ValueError(
                f"process set {self.process_set_id} is unknown; pass it to "
                "hvd.init(process_sets=...) on every rank"
            )
        return native.known(value)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


class Registered(NamedTuple):
    """What is known of a process set once `init` has registered it."""

    id: int
    ranks: list[int]
    """The members' ranks in the job, ascending."""
    rank: int
    """This process's place among them. -1: it is no member."""

    @property
    def size(self) -> int:
        return len(self.ranks)


def registered(process_set: ProcessSet) -> Registered:
    """The set, which must be registered.

    Raises:
        ValueError: it is not, or hvd is not initialised.
    """
    rank = process_set.rank()
    if process_set.process_set_id is None or process_set.ranks is None or rank is None:
        raise ValueError(
            f"{process_set} is not registered; pass it to hvd.init(process_sets=...) on every rank"
        )
    return Registered(process_set.process_set_id, process_set.ranks, rank)


def ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of all registered sets, by id. Empty before `init`."""
    lib = native.lib
    found = {}
    for set_id in range(lib.hvd_process_set_count()):
        ranks = native.int_array([0] * lib.hvd_process_set_size(set_id))
        lib.hvd_process_set_ranks(set_id, ranks, len(ranks))
        found[set_id] = list(ranks)
    return found


def is_communicator(value: Any) -> bool:
    """Whether it is an mpi4py communicator, without importing mpi4py."""
    return any(
        cls.__name__ == "Comm" and cls.__module__.split(".")[0] == "mpi4py"
        for cls in type(value).__mro__
    )


def _checked_ranks(ranks: Any) -> list[int]:
    try:
        entries = list(ranks)
    except TypeError:
        entries = [None]
    if not all(isinstance(rank, Integral) and not isinstance(rank, bool) for rank in entries):
        raise ValueError(
            f"ProcessSet takes a list of ranks (ints) or an mpi4py communicator, not {ranks!r}"
        )
    checked = sorted(int(rank) for rank in entries)
    if not checked:
        raise ValueError("a ProcessSet needs at least one rank")
    if len(set(checked)) != len(checked):
        raise ValueError(f"a ProcessSet lists each rank once, not {checked}")
    return checked


def _new_global_process_set() -> ProcessSet:
    process_set = ProcessSet([0])
    process_set.process_set_id = 0
    process_set.ranks = None
    return process_set


global_process_set = _new_global_process_set()
"""All ranks of the job. The default wherever a process set can be passed."""


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
