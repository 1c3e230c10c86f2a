# SPDX-License-Identifier: Apache-2.0
"""The status that the program asks for by sys.exit, exit or quit.

At its exit a rank may wait for peers in MPI_Finalize and be ended there. Its status then shows
nowhere else. Python tells it to no handler.
"""

from __future__ import annotations

import builtins
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_status = 0


def watch() -> None:
    """Have them note their argument. To be called once."""
    original = sys.exit

    @functools.wraps(original)
    def noting(status: Any = None, /) -> NoReturn:
        _note(status)
        original(status)

    sys.exit = noting
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__module__ == "_sitebuiltins":  # Python's own, and not a notebook's
        _watch_class(quitter)


def _watch_class(quitter: Any) -> None:
    """That of exit and quit, so that they show themselves as before."""
    original = quitter.__call__

    @functools.wraps(original)
    def noting(self: Any, code: Any = None) -> NoReturn:
        _note(code)
        original(self, code)
        raise SystemExit(code)  # it does not return

    quitter.__call__ = noting


def _note(status: Any) -> None:
    global _status
    # Any other thread ends itself alone.
    if threading.current_thread() is threading.main_thread():
        _status = _number(status)


@contextmanager
def noted() -> Iterator[None]:
    """Notes the status of a program that runs within, also by `raise SystemExit`."""
    try:
        yield
    except SystemExit as error:
        _note(error.code)
        raise


def status() -> int:
    """As the process will return it. 0 where none of them was called."""
    return _status


def _number(status: Any) -> int:
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1  # a text is printed
