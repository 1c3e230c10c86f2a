# SPDX-License-Identifier: Apache-2.0
"""Writes the Python stacks of all threads to stderr when the library asks for them.

It asks on every rank when one keeps the others waiting (HVD_STALL_WARNING_S). A Python thread waits
for that request. It cannot run while another thread holds the interpreter and does not let go. Then
the library raises a signal on its own thread. The signal's handler needs no interpreter.
docs/decisions/0008 says why there are two ways.
"""

from __future__ import annotations

import faulthandler
import os
import threading

from hvd_tf._internal import native

_STDERR = 2
# The signal of faulthandler's handler. 0: there is none.
_signal = 0


def start() -> None:
    """Serves the runtime that `init` has just started, until `shutdown` ends it."""
    global _signal
    if _signal == 0:
        _signal = int(native.lib.hvd_unused_signal())
        if _signal:
            faulthandler.register(_signal, file=_STDERR, all_threads=True)
    native.lib.hvd_set_stack_signal(_signal)
    try:
        threading.Thread(target=_serve, name="hvd-stacks", daemon=True).start()
    except RuntimeError:
        pass  # no more threads: the signal remains


def stop() -> None:
    """Gives the signal back. Call it when the runtime has ended."""
    global _signal
    if _signal:
        faulthandler.unregister(_signal)
        _signal = 0


def _serve() -> None:
    while native.lib.hvd_wait_for_stack_request():
        _write()
        native.lib.hvd_stacks_written()


def _write() -> None:
    """Writes by faulthandler. That reads no files, which the rank may be waiting for."""
    rank, host = native.lib.hvd_rank(), os.uname().nodename
    try:
        text = f"hvd_tf: Python stacks of rank {rank} ({host}, pid {os.getpid()}):\n"
        os.write(_STDERR, text.encode())
        faulthandler.dump_traceback(file=_STDERR, all_threads=True)
    except (OSError, ValueError):
        pass  # stderr is closed
