# SPDX-License-Identifier: Apache-2.0
"""How much memory this process has from the C library."""

from __future__ import annotations

import ctypes


class Mallinfo(ctypes.Structure):
    """The C library's struct mallinfo."""

    _fields_ = [
        (name, ctypes.c_int)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks "
        "keepcost".split()
    ]


def malloc_bytes() -> int:
    """What the C library has given out and not got back. Above 2 GiB it wraps."""
    mallinfo = ctypes.CDLL(None).mallinfo
    mallinfo.restype = Mallinfo
    info = mallinfo()
    return info.uordblks + info.hblkhd


def grown_bytes(before: int) -> int:
    """How much more it is than `before`, which `malloc_bytes` has given."""
    return ctypes.c_int32(malloc_bytes() - before).value
