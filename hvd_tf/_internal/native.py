# SPDX-License-Identifier: Apache-2.0
"""Loads `_native.so` once: its TensorFlow ops (`ops`) and its C functions (`lib`).

The C functions are those of tf_ops/adapter/c_api.h. This file alone has the numbers that they take
and return, and makes Python exceptions of their codes. tests/single/test_native.py compares it with
the headers.
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import tensorflow as tf

from hvd_tf._internal.build_stamp import LIBRARY, REBUILD, check_build
from hvd_tf._internal.causes import caused, from_numbers

# StatusCode of tf_ops/core/status.h.
_OK = 0
_EXCEPTIONS: dict[int, type[Exception]] = {
    1: ValueError,  # kInvalidArgument
    2: ValueError,  # kFailedPrecondition
    3: RuntimeError,  # kPeerLost
    4: RuntimeError,  # kCancelled
    5: MemoryError,  # kResourceExhausted
    6: RuntimeError,  # kInternal
}

# HvdNoNumber of tf_ops/adapter/c_api.h: what functions return that have no number to return.
_FAILED = -4
UNKNOWN_PROCESS_SET = -2
"""The set of that id is not registered, or no longer."""
NOT_A_MEMBER = -3
"""The rank of this process in a set that it is not in."""

# PeerEndKind of tf_ops/core/peer_end.h.
PEER_LEFT = 0
"""The peer has shut down."""
PEER_GIVEN_UP = 2
"""The peer said nothing, and others have given it up."""

# kProcessSetSlots of tf_ops/core/process_set.h.
_MOST_PROCESS_SETS = 64

_INTS = ctypes.POINTER(ctypes.c_int)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "hvd_last_error": (ctypes.c_char_p, []),
    "hvd_last_cause": (ctypes.c_int, [_INTS, ctypes.POINTER(ctypes.c_char_p)]),
    "hvd_cause_of": (ctypes.c_int, [ctypes.c_char_p, _INTS, ctypes.POINTER(ctypes.c_char_p)]),
    "hvd_init": (
        ctypes.c_int,
        [_INTS, *[ctypes.c_int] * 3, _INTS, _INTS, *[ctypes.c_int] * 2],
    ),
    "hvd_shutdown": (None, []),
    "hvd_shutdown_to_restart": (ctypes.c_int, []),
    "hvd_is_initialized": (ctypes.c_int, []),
    "hvd_at_exit": (None, []),
    "hvd_rank": (ctypes.c_int, []),
    "hvd_size": (ctypes.c_int, []),
    "hvd_local_rank": (ctypes.c_int, []),
    "hvd_local_size": (ctypes.c_int, []),
    "hvd_cross_rank": (ctypes.c_int, []),
    "hvd_cross_size": (ctypes.c_int, []),
    "hvd_is_homogeneous": (ctypes.c_int, []),
    "hvd_mpi_threads_supported": (ctypes.c_int, []),
    "hvd_process_set_ids": (ctypes.c_int, [_INTS, ctypes.c_int]),
    "hvd_process_set_size": (ctypes.c_int, [ctypes.c_int]),
    "hvd_process_set_rank": (ctypes.c_int, [ctypes.c_int]),
    "hvd_process_set_ranks": (ctypes.c_int, [ctypes.c_int, _INTS, ctypes.c_int]),
    "hvd_process_set_serial": (ctypes.c_int, [ctypes.c_int]),
    "hvd_has_dynamic_process_sets": (ctypes.c_int, []),
    "hvd_add_process_set": (ctypes.c_int, [_INTS, ctypes.c_int, ctypes.c_char_p, _INTS]),
    "hvd_remove_process_set": (ctypes.c_int, [ctypes.c_int]),
    "hvd_mpi_built": (ctypes.c_int, []),
    "hvd_cuda_built": (ctypes.c_int, []),
    "hvd_forget_runs": (None, []),
    "hvd_has_gpu_lane": (ctypes.c_int, []),
    "hvd_reduce_op": (ctypes.c_int, [ctypes.c_char_p]),
    "hvd_put_eager_words": (
        ctypes.c_int64,
        [ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p],
    ),
    "hvd_drop_eager_words": (None, [ctypes.c_int64]),
    "hvd_end_scope": (None, [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p]),
    "hvd_announce_failure": (None, [ctypes.c_char_p]),
    "hvd_first_peer_end": (ctypes.c_int, [_INTS, ctypes.c_char_p, ctypes.c_int]),
    "hvd_launched_size": (ctypes.c_int, []),
    "hvd_abort": (None, [ctypes.c_int]),
    "hvd_start_timeline": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int]),
    "hvd_stop_timeline": (ctypes.c_int, []),
    "hvd_comm_stats": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int]),
    "hvd_wait_for_stack_request": (ctypes.c_int, []),
    "hvd_stacks_written": (None, []),
    "hvd_unused_signal": (ctypes.c_int, []),
    "hvd_set_stack_signal": (None, [ctypes.c_int]),
}


def _load() -> tuple[ModuleType, ctypes.CDLL]:
    check_build(tf.__version__)
    try:
        ops = tf.load_op_library(str(LIBRARY))
        lib = ctypes.CDLL(str(LIBRARY))
    except (tf.errors.NotFoundError, OSError) as error:
        text = getattr(error, "message", str(error))
        raise ImportError(
            f"hvd_tf's library does not load: {text}. If it names a symbol, rebuild it "
            f"(`{REBUILD} .` in its source directory); if it names libmpi, reinstall the MPI that "
            "it was built with."
        ) from None
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return ops, lib


def check(code: int) -> None:
    """Raises the exception of a StatusCode, with the text and cause of this thread's last error.

    It is ValueError for an error of the caller, MemoryError without memory, and RuntimeError for
    all else.
    """
    if code == _OK:
        return
    error = _EXCEPTIONS.get(code, RuntimeError)(lib.hvd_last_error().decode(errors="replace"))
    rank, tensor = ctypes.c_int(-1), ctypes.c_char_p(b"")
    kind = lib.hvd_last_cause(ctypes.byref(rank), ctypes.byref(tensor))
    cause = from_numbers(kind, rank.value, (tensor.value or b"").decode(errors="replace"))
    raise caused(error, cause) if cause else error


def not_initialized() -> ValueError:
    """The exception of a call that came before init, for the caller to raise."""
    return ValueError("hvd_tf has not been initialized; use hvd.init() first.")


def known(value: int) -> int:
    """Checks a value of a C function that is negative before init. Raises ValueError then.

    Raises RuntimeError if the function failed.
    """
    if value == _FAILED:
        raise RuntimeError(lib.hvd_last_error().decode(errors="replace"))
    if value < 0:
        raise not_initialized()
    return value


def process_set_ids() -> list[int]:
    """The ids of all registered sets, ascending. Empty before init."""
    ids = int_array([0] * _MOST_PROCESS_SETS)
    return list(ids[: max(0, lib.hvd_process_set_ids(ids, len(ids)))])


def int_array(values: list[int]) -> Any:
    """A C array of ints."""
    return (ctypes.c_int * len(values))(*values)


ops, lib = _load()
