# SPDX-License-Identifier: Apache-2.0
"""The cause of an error: its kind, the rank and the tensor. Imports no TensorFlow.

The library gives it beside the error's words. Those are for people, and may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Optional, TypeVar

_E = TypeVar("_E", bound=BaseException)

_ATTRIBUTE = "_hvd_cause"
# As in tf_ops/adapter/tf_bridge.cc.
_PAYLOAD = b"hvd_tf/cause"


class Kind(IntEnum):
    """CauseKind of tf_ops/core/status.h, which explains them."""

    STEP_ABORTED = 1
    SCOPE_ENDED = 2
    RANK_FAILED = 3
    RANK_LEFT = 4
    RANK_GIVEN_UP = 5
    RANK_DROPPED_OUT = 6
    CALL_FAILED = 7
    RANKS_DIFFER = 8
    NOT_FINITE = 9
    RANK_RESTARTS = 10


@dataclass(frozen=True)
class Cause:
    """The cause of a failure that this rank did not bring about alone."""

    kind: Kind
    rank: int
    """A rank of the job. -1: no single rank."""
    tensor: str = ""
    """The name of the failed tensor. Empty: none."""
    message: str = ""
    """The library's message, without what TensorFlow puts around it. Empty: not known."""


def caused(error: _E, cause: Cause) -> _E:
    """Returns the error itself. `cause_of` now knows its cause."""
    setattr(error, _ATTRIBUTE, cause)
    return error


def cause_of(error: BaseException) -> Optional[Cause]:
    """The cause that this exception itself carries, or None."""
    attached = getattr(error, _ATTRIBUTE, None)
    if isinstance(attached, Cause):
        return attached
    payloads = getattr(error, "experimental_payloads", None)  # TensorFlow's
    payload = payloads.get(_PAYLOAD) if isinstance(payloads, dict) else None
    return _decode(payload) if isinstance(payload, bytes) else None


def from_numbers(kind: int, rank: int, tensor: str = "") -> Optional[Cause]:
    """The cause from what a C function returned. None for the kind 0."""
    return Cause(Kind(kind), rank, tensor) if kind else None


def _decode(payload: bytes) -> Cause:
    kind, rank, length, rest = payload.split(b" ", 3)
    tensor, message = rest[: int(length)], rest[int(length) :]
    return Cause(
        Kind(int(kind)),
        int(rank),
        tensor.decode(errors="replace"),
        message.decode(errors="replace"),
    )
