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

_calls = 0  # of sys.exit
_status = 0  # of the last call


class _Mark:
    """Belongs to the SystemExit of one call, and is freed with it.

    Where that ends the program, no frame is left by then. Where the program has caught it, one is.
    """

    def __init__(self) -> None:
        self._call = _calls

    def __del__(self) -> None:
        global _status
        if self._call != _calls:
            return
        try:
            sys._getframe(1)
        except ValueError:  # there is none
            return
        _status = 0


def watch() -> None:
    """Have sys.exit note its argument. To be called once."""
    original = sys.exit

    @functools.wraps(original)
    def noting(status: Any = None, /) -> NoReturn:
        global _calls, _status
        if threading.current_thread() is not threading.main_thread():
            original(status)  # any other thread ends itself alone
        _calls += 1
        _status = _number(status)
        try:
            original(status)
        except SystemExit as exception:
            vars(exception)["_hvd_mark"] = _Mark()
            raise

    sys.exit = noting


def status() -> int:
    """As the process will return it. 0 where sys.exit was not called, or the program went on."""
    return _status


def _number(status: Any) -> int:
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1  # a text is printed
