# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as people write them. K, M and G are powers of 1024, as in NCCL's tests."""

from __future__ import annotations

import re

_PREFIXES = "KMG"


def parse_bytes(text: str) -> int:
    """Bytes from "4", "64K", "256M" or "1 GiB".

    Raises:
      ValueError: the text does not have this form.
    """
    found = re.fullmatch(r"(\d+)\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"{text!r} is not a size such as 4, 64K or 256M")
    return int(found[1]) * 1024 ** (_PREFIXES.index(found[2].upper()) + 1 if found[2] else 0)


def bytes_text(size_bytes: int) -> str:
    """Such as "4 B", "64 KiB" or "97.5 MiB"."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    power = min((size_bytes.bit_length() - 1) // 10, len(_PREFIXES))
    value = size_bytes / 1024**power
    number = f"{value:.0f}" if value == int(value) else f"{value:.1f}"
    return f"{number} {_PREFIXES[power - 1]}iB"


def time_text(time_s: float) -> str:
    """Three digits and a unit, such as "12.3 us", "1.23 ms" or "-4.56 s"."""
    for unit, scale in (("us", 1e6), ("ms", 1e3), ("s", 1.0)):
        value = time_s * scale
        if abs(value) < 999.5 or unit == "s":
            break
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if abs(value) >= 1 else 2
    return f"{value:.{digits}f} {unit}"
