# SPDX-License-Identifier: Apache-2.0
"""How often elastic.run has started the runtime anew in this process, and what forgets then.

Before a failure ranks may have come to different points. So what each rank counts for itself, and
what others must count alike, begins anew with each start.
"""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

_number = 0


class Forgetful(Protocol):
    """Something that ranks must begin together."""

    def on_new_start(self) -> None:
        """Begin anew. Every rank does."""


_forgetful: WeakSet[Forgetful] = WeakSet()


def number() -> int:
    """0 before the first new start. The same on all ranks of the job."""
    return _number


def add_forgetful(one: Forgetful) -> None:
    """Have it begin anew with each new start, as long as it is there."""
    _forgetful.add(one)


def begin() -> None:
    """Between the end of the runtime and its new start. `runtime.restart` calls it."""
    global _number
    _number += 1
    for one in list(_forgetful):
        one.on_new_start()
