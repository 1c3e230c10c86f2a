# SPDX-License-Identifier: Apache-2.0
"""Rank and size as operations. They are read when the graph runs, not when it is built."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf

from hvd_tf._internal import native


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the number of ranks of a process set."""
    return native.ops.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: 1 if this rank is a member, else 0. Negative for an unknown set."""
    return native.ops.horovod_process_set_included(process_set_id=process_set_id, name=name)


def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the number of ranks on this host."""
    return native.ops.horovod_local_size(name=name)


def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the rank of this process."""
    return native.ops.horovod_rank(name=name)


def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """int32 scalar: the rank of this process among those of its host."""
    return native.ops.horovod_local_rank(name=name)


for _type in (
    "HorovodSize",
    "HorovodProcessSetIncluded",
    "HorovodLocalSize",
    "HorovodRank",
    "HorovodLocalRank",
    "HorovodBroadcastInplace",
    "HorovodBroadcastInplaceResource",
    "HorovodBroadcastVariables",
):
    tf.no_gradient(_type)
