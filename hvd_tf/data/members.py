# SPDX-License-Identifier: Apache-2.0
"""What the package asks of a process set, and says on its first rank."""

from __future__ import annotations

import sys

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.runtime import ProcessSet


def announce(text: str, process_set: ProcessSet) -> None:
    """Prints a line on stderr, on the set's first rank."""
    if process_set.rank() == 0:
        print(f"hvd_tf: {text}", file=sys.stderr, flush=True)


def checked_size(process_set: ProcessSet) -> int:
    """The number of ranks of the set, to which this one belongs.

    Raises:
      ValueError: before `init`; the set is not registered; this rank is not a member.
      RuntimeError: while a tf.function is traced.
    """
    if v1.executing_eagerly_outside_functions() and not tf.executing_eagerly():
        raise RuntimeError(
            "hvd.data asks the other ranks while it builds a dataset, so it cannot be a part of a "
            "tf.function: build the dataset outside"
        )
    size = process_set.size()
    if size is None:
        raise ValueError(
            f"{process_set} is not registered; pass it to hvd.init(process_sets=...) on every rank"
        )
    if not process_set.included():
        raise ValueError(f"this rank is not a member of {process_set}; call on its members only")
    return size
