# SPDX-License-Identifier: Apache-2.0
"""Process sets: groups of ranks that run collectives among themselves."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, NamedTuple, Optional, Union

from hvd_tf._internal import native

REGISTER = "pass it to hvd.init(process_sets=...) or hvd.add_process_set on every rank"
"""What to do about a set that is not registered."""


class ProcessSet:
    """Some of the job's ranks. Pass it to `init` or `add_process_set`, then to collectives.

    A copy is the same set, so that an optimizer may be copied before `init` registers its set.

    Attributes:
      process_set_id: a small int, the same on every rank; None while it is not registered.
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
        return -1 if value == native.NOT_A_MEMBER else self._known(value)

    def included(self) -> Optional[bool]:
        """Whether this process is a member. None before registration.

        Raises:
          ValueError: hvd is not initialised, or the set is not of this init.
        """
        rank = self.rank()
        return None if rank is None else rank >= 0

    def _known(self, value: int) -> int:
        if value == native.UNKNOWN_PROCESS_SET:
            raise ValueError(f"process set {self.process_set_id} is unknown; {REGISTER}")
        return native.known(value)

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: Any) -> ProcessSet:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self is global_process_set:
            return "global_process_set"  # by its name in this module
        return super().__reduce_ex__(protocol)

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
    serial: int
    """The set's number in this init. Ids are given to other sets again, this is not."""

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
        raise ValueError(f"{process_set} is not registered; {REGISTER}")
    serial = native.known(native.lib.hvd_process_set_serial(process_set.process_set_id))
    return Registered(process_set.process_set_id, process_set.ranks, rank, serial)


def ids_and_ranks() -> dict[int, list[int]]:
    """The ranks of all registered sets, by id. Empty before `init`."""
    found = {}
    for set_id in native.process_set_ids():
        size = native.lib.hvd_process_set_size(set_id)
        if size < 0:
            continue  # removed meanwhile
        ranks = native.int_array([0] * size)
        native.lib.hvd_process_set_ranks(set_id, ranks, size)
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
    if checked[-1] >= 2**31:  # C++ would take it for another one
        raise ValueError(f"no job has a rank {checked[-1]}, which a ProcessSet lists")
    return checked


def _new_global_process_set() -> ProcessSet:
    process_set = ProcessSet([0])
    process_set.process_set_id = 0
    process_set.ranks = None
    return process_set


global_process_set = _new_global_process_set()
"""All ranks of the job. The default wherever a process set can be passed."""
