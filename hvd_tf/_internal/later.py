# SPDX-License-Identifier: Apache-2.0
"""Names of Horovod that hvd_tf does not offer yet. Calling one says so."""

from __future__ import annotations

from typing import NoReturn

__all__ = [
    "start_timeline",
    "stop_timeline",
]


def start_timeline(file_path: str, mark_cycles: bool = False) -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("start_timeline", "the profiler of TensorFlow shows the operations")


def stop_timeline() -> NoReturn:
    """Raises NotImplementedError."""
    _refuse("stop_timeline", "there is none")


def _refuse(name: str, remedy: str) -> NoReturn:
    raise NotImplementedError(f"hvd_tf.{name} is not offered yet: {remedy}")
