# SPDX-License-Identifier: Apache-2.0
"""Whether all ranks have a model's trainable variables in one order.

Their gradients are matched by place (docs/decisions/0023-gradients-of-keras-go-by-place.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from hvd_tf._internal.compat import Variable
from hvd_tf._internal.facts import exchange
from hvd_tf._internal.names import variable_names
from hvd_tf._internal.runtime import rank


def check_order(variables: Sequence[Variable], root_rank: int) -> None:
    """Raise ValueError on every rank if one has the root's variables in another order.

    Ranks whose names differ may be right: a model that was loaded has other names. A collective
    call of all ranks, in eager code.
    """
    names = variable_names(variables)
    digests = {"ordered": _digest(names), "sorted": _digest(sorted(names))}
    everyones = exchange(digests, "variable_order/digests")
    root = everyones[root_rank]
    wrong = [
        of
        for of, theirs in enumerate(everyones)
        if theirs["sorted"] == root["sorted"] and theirs["ordered"] != root["ordered"]
    ]
    if not wrong:
        return
    lists = exchange({"names": names if rank() in (root_rank, wrong[0]) else []}, "variable_order")
    of_root, theirs = (lists[of]["names"] for of in (root_rank, wrong[0]))
    place = next(place for place, name in enumerate(of_root) if name != theirs[place])
    raise ValueError(
        f"the model's trainable variables are in another order on rank {wrong[0]} than on rank "
        f"{root_rank}: number {place} is {theirs[place]!r} in place of {of_root[place]!r}. Ranks "
        "match gradients by place: make the layers and variables in the same order on every rank"
    )


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
