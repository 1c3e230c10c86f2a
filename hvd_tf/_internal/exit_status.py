# SPDX-License-Identifier: Apache-2.0
"""The status that the program asks for by sys.exit.

At its exit a rank may wait for peers in MPI_Finalize and be ended there. Its status then shows
nowhere else. Python tells it to no handler.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any, NoReturn

_status = 0


def watch() -> None:
    """Have sys.exit note its argument. To be called once."""
    original = sys.exit

    @functools.wraps(original)
    def noting(status: Any = None, /) -> NoReturn:
        global _status
        # Any other thread ends itself alone.
        if threading.current_thread() is threading.main_thread():
            _status = _number(status)
        original(status)

    sys.exit = noting


def status() -> int:
    """As the process will return it. 0 where sys.exit was not called."""
    return _status


def _number(status: Any) -> int:
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1  # a text is printed
