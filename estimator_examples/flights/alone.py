# SPDX-License-Identifier: Apache-2.0
"""Stands in for hvd_tf in train.py --plain: the same program as one process without the library."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def init() -> None:
    """Nothing to start."""


def rank() -> int:
    """The only rank."""
    return 0


def size() -> int:
    """One process."""
    return 1


def DistributedOptimizer(  # noqa: N802 (the name of hvd_tf)
    optimizer: tf.compat.v1.train.Optimizer,
) -> tf.compat.v1.train.Optimizer:
    """The optimizer itself."""
    return optimizer


def BroadcastGlobalVariablesHook(  # noqa: N802 (the name of hvd_tf)
    root_rank: int,
) -> tf.compat.v1.train.SessionRunHook:
    """A hook that does nothing."""
    del root_rank
    return tf.compat.v1.train.SessionRunHook()


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    """The object itself."""
    del root_rank
    return obj
