# SPDX-License-Identifier: Apache-2.0
"""A command's arguments as words that no launcher takes for something else.

mpirun's own parser takes a lone ":" for the next program, renames "--map-by" and refuses some
options that come twice. It does so behind the program's name too. ssh joins words with spaces. So
every argument becomes "=" and its text. In the text "%" and two hexadecimal digits stand for every
byte that is not plain.
`rank_main.py` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=")


def encode(arguments: Sequence[str]) -> list[str]:
    """One word for each argument."""
    return ["=" + "".join(map(_byte, os.fsencode(argument))) for argument in arguments]


def _byte(value: int) -> str:
    return chr(value) if value in _PLAIN else f"%{value:02x}"
