# SPDX-License-Identifier: Apache-2.0
"""Types of command-line arguments, for argparse: numbers within bounds, and paths."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Optional


def whole(
    what: str = "whole number", least: int = 0, most: Optional[int] = None
) -> Callable[[str], int]:
    """The type of whole numbers from `least`, and to `most` if that is given."""
    bounds = f"from {least} upwards" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        number = int(text) if text.isdecimal() else -1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a {what} {bounds}")
        return number

    return parse


def number(text: str) -> float:
    """A finite number from 0 upwards."""
    value = _float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 upwards")
    return value


def seconds(text: str) -> float:
    """A number above 0. Days at most: the system's clocks take no more than some years."""
    value = _float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0, below 1e6")
    return value


def path(text: str) -> Path:
    """Of a file or directory. A shell leaves ~ as it is behind the = of an option."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # there is no home, or no such user
        return Path(text)


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan
