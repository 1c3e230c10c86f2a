# SPDX-License-Identifier: Apache-2.0
"""Arguments that are whole numbers of at least 1, of Python or of NumPy."""

from __future__ import annotations

from numbers import Integral
from typing import Any


def is_count(value: Any) -> bool:
    """Whether it is one."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def checked_count(name: str, value: Any) -> int:
    """The value of the argument with this name.

    Raises:
      ValueError: it is none.
    """
    if not is_count(value):
        raise ValueError(f"{name} must be a whole number of at least 1. Received: {value!r}")
    return int(value)
