# SPDX-License-Identifier: Apache-2.0
"""What Horovod has in its module of this name: broadcasts of variables, and Python objects."""

from __future__ import annotations

from hvd_tf._internal.objects import allgather_object, broadcast_object, broadcast_object_fn
from hvd_tf._internal.variables import broadcast_global_variables, broadcast_variables

__all__ = [
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]
