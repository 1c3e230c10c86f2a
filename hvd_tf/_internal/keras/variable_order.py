# SPDX-License-Identifier: Apache-2.0
"""Whether all ranks have a model's trainable variables in one order.

Their gradients are matched by place (docs/decisions/0023-gradients-of-keras-go-by-place.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from hvd_tf._internal.compat import variable_key
from hvd_tf._internal.facts import exchange
from hvd_tf._internal.keras.reducing import all_reducing_of
from hvd_tf._internal.names import variable_names
from hvd_tf._internal.runtime import rank


def check_order(model: Any, local: Sequence[Any], root_rank: int) -> None:
    """Raise ValueError on every rank if one has the root's variables in another order.

    Ranks whose names differ may be right: a model that was loaded has other names. A collective
    call of all ranks but those that have joined, in eager code. Without a distributed optimizer it
    does nothing: a tape may match by name.

    Args:
      model: compiled.
      local: variables that stay as they are on each rank.
      root_rank: a rank of the job.
    """
    optimizers = all_reducing_of(model)
    if not optimizers:
        return
    of_optimizers = [variable for one in optimizers for variable in one._local_vars]
    left_out = {variable_key(variable) for variable in (*local, *of_optimizers)}
    names = variable_names(
        [v for v in model.trainable_variables if variable_key(v) not in left_out]
    )
    facts = {"rank": rank(), "ordered": _digest(names), "sorted": _digest(sorted(names))}
    everyones = {theirs["rank"]: theirs for theirs in exchange(facts, "variable_order/digests")}
    root = everyones.get(root_rank)
    if root is None:
        return  # it has joined: the broadcast says so
    wrong = [
        of
        for of, theirs in everyones.items()
        if theirs["sorted"] == root["sorted"] and theirs["ordered"] != root["ordered"]
    ]
    if wrong:
        _raise(names, root_rank, wrong[0])


def _raise(names: Sequence[str], root_rank: int, wrong: int) -> None:
    mine = list(names) if rank() in (root_rank, wrong) else []
    facts = exchange({"rank": rank(), "names": mine}, "variable_order/names")
    lists = {theirs["rank"]: theirs["names"] for theirs in facts}
    place, of_root = next(
        (place, name) for place, name in enumerate(lists[root_rank]) if name != lists[wrong][place]
    )
    raise ValueError(
        f"the model's trainable variables are in another order on rank {wrong} than on rank "
        f"{root_rank}: number {place} is {lists[wrong][place]!r} in place of {of_root!r}. Ranks "
        "match gradients by place: make the layers and variables in the same order on every rank"
    )


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
