# SPDX-License-Identifier: Apache-2.0
"""States of Python objects, and what all states have."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from hvd_tf._internal import commits, launched, new_starts, pickling, runtime
from hvd_tf._internal.commits import CommitFile
from hvd_tf._internal.facts import Facts, exchange
from hvd_tf._internal.objects import broadcast_object

_numbers = itertools.count()


class State:
    """What a training needs to go on from a commit. The base of all states."""

    # They are attributes of the class because a derived one need not call __init__.
    _commits = 0
    _reset_callbacks: Sequence[Callable[[], Any]] = ()

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        """For derived classes, which find the arguments in the attributes that Horovod's have."""
        self._bcast_object = bcast_object
        self._rank = get_rank

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Has these called after each new start of the runtime, before the function goes on."""
        self._reset_callbacks = [*self._reset_callbacks, *callbacks]

    def on_reset(self) -> None:
        """Calls `reset` and the callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: Any) -> None:
        """Horovod's driver calls it. Hosts do not come and go here, so nothing does."""

    def commit(self) -> None:
        """Saves the state. Every rank commits at the same point of the program."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt if hosts came or went. They do not."""

    def save(self) -> None:
        """Keeps the state in memory. On rank 0, where the job may start again, in a file too."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives every rank the state of rank 0, and saves it. A collective call of all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called after each new start of the runtime."""

    def _finish(self) -> None:
        """Called when the function of `run` has returned."""


class ObjectState(State):
    """Python objects: attributes of the state, which pickle can store."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = runtime.rank,
        **kwargs: Any,
    ) -> None:
        """For one training.

        Args:
          bcast_object: gives every rank the object of rank 0, which is its only argument.
          get_rank: this rank.
          **kwargs: the attributes with their first values, such as epoch=0.
        """
        super().__init__()
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = copy.deepcopy(kwargs)
        self._number: Optional[int] = None  # of its file
        self._file: Optional[CommitFile] = None

    def save(self) -> None:
        """Keeps copies of the attributes, and of what `_content` adds."""
        self._saved = copy.deepcopy(self._values_by_name())
        if self._file is not None:
            self._file.write((self._saved, self._content()))

    def restore(self) -> None:
        """Goes back to the copies."""
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives every rank the state of rank 0, which keeps its own objects.

        Raises:
          ValueError: on every rank, if the ranks sync different states.
        """
        # Not numbered: a rank may have made more states than others, which only it uses.
        name = f"elastic/{new_starts.number()}"
        is_ours = self._bcast_object is broadcast_object
        if is_ours:
            _check_same(exchange({"class": self._class, "names": self._names}, f"{name}/state"))
        self._load()
        self._share()
        # A function of the program need not know names.
        self._set(self._bcast_object(self._values_by_name(), **({"name": name} if is_ours else {})))
        self.save()

    def _share(self) -> None:
        """Gives every rank what else rank 0 has. Derived classes have more."""

    def _content(self) -> Any:
        """What else a file needs. Derived classes keep it in memory too."""
        return None

    def _set_content(self, content: Any, path: Path) -> None:
        """Takes what the file had, for `restore` too."""

    def _finish(self) -> None:
        if self._file is not None:
            self._file.finish()

    def _load(self) -> None:
        """In the first `sync` rank 0 goes on from what an earlier start of the job left.

        Before that nothing is written, which would replace it.
        """
        if self._file is not None or self._rank() != 0:
            return
        identity = [*commits.program(), self._class, *self._names]
        if (launched_rank := launched.rank()) > 0:  # `init(comm=...)` gave the job several ranks 0
            identity.append(f"rank {launched_rank}")
        if self._number is None:
            # Of those that are synced, which are the same ones at each start of the job.
            self._number = next(_numbers)
        file = CommitFile(self._number, identity=identity, dump=pickling.dump)
        found = file.read()
        if found is not None:
            values, content = found
            self._set_content(content, file.path)
            self._saved = values
            self._set(copy.deepcopy(values))
        self._file = file

    @property
    def _class(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"

    def _values_by_name(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names}

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


def _check_same(everyones: Sequence[Facts]) -> None:
    """Raises ValueError on every rank if one would not get all of its state from rank 0's."""
    root = everyones[0]
    for rank, theirs in enumerate(everyones):
        if theirs["class"] != root["class"] or not set(theirs["names"]) <= set(root["names"]):
            raise ValueError(
                f"the ranks sync different states: rank 0 {_shown(root)} and rank {rank} "
                f"{_shown(theirs)}. Every rank must sync the same states in the same order"
            )


def _shown(facts: Facts) -> str:
    names = ", ".join(f"{name}=" for name in facts["names"])
    return f"{facts['class'].rpartition('.')[2]}({names})"
