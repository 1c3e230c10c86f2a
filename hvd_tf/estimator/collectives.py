# SPDX-License-Identifier: Apache-2.0
"""Finds collectives among what the steps of an evaluation run."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from hvd_tf._internal.compat import nodes_of

_PREFIX = "Horovod"
WAITS = "It would wait for ranks that have no batch left, or that do not evaluate"
"""Why a collective is refused."""

# These ask no other rank.
_LOCAL = ("Rank", "LocalRank", "LocalSize", "Size", "ProcessSetIncluded")


def collective_among(operations: Iterable[tf.Operation]) -> str:
    """The type and the name of a collective among these or in functions they call. Empty: none."""
    for operation in operations:
        for kind, name in nodes_of(operation):
            if kind.startswith(_PREFIX) and kind.removeprefix(_PREFIX) not in _LOCAL:
                return f"{kind} {name!r}"
    return ""
