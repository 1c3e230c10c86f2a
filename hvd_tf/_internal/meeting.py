# SPDX-License-Identifier: Apache-2.0
"""`Meeting`: points that all ranks reach. If one does not, the others learn why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Optional, TypeVar

import tensorflow as tf

from hvd_tf._internal.causes import Cause, Kind, caused
from hvd_tf._internal.objects import allgather_object, broadcast_object
from hvd_tf._internal.runtime import rank, size
from hvd_tf._internal.scopes import fail_data, leave_data_failed

_T = TypeVar("_T")


class Meeting:
    """Points that all ranks reach. If one does not, it tells the others why.

    Each rank comes to the same points in the same order. It fails at most once.
    """

    def __init__(self, what: str, of_ranks: bool = True) -> None:
        """what: one word for messages. of_ranks: False if there is no other rank to meet."""
        self._what = what
        self._open = of_ranks and size() > 1

    def meet(self) -> None:
        """Wait for all ranks. Raises RuntimeError when one has failed."""
        if self._open:
            self._exchange("")

    def fail(self, error: Exception) -> None:
        """Tell the ranks that wait, or will come, at the next point.

        That includes ranks that wait in `hvd_tf.data` on the way there, in the user's input
        function.
        """
        if self._open:
            fail_data(_text(error))
            try:
                self._exchange(_text(error))
            except (tf.errors.OpError, RuntimeError):
                pass  # others have failed too, or are lost: this rank raises its own error
            finally:
                leave_data_failed()

    def _exchange(self, failure: str) -> None:
        failures = allgather_object(failure, name=f"{self._what}/meeting")
        self._open = not any(failures)
        if not self._open:
            # No rank may go on, perhaps to new datasets, before all have taken it back.
            fail_data("")
            allgather_object(None, name=f"{self._what}/taken_back")
            raise _first_failure(self._what, failures)


def everywhere(action: Callable[[], _T], what: str) -> _T:
    """Do it on every rank, or raise on every rank."""
    meeting = Meeting(what)
    try:
        result = action()
    except Exception as error:
        meeting.fail(error)
        raise
    meeting.meet()
    return result


def on_rank_0(action: Callable[[], _T], what: str) -> _T:
    """Do it on rank 0 alone. Every rank gets its picklable result, or every rank raises."""
    answer: tuple[Optional[_T], str] = (None, "")
    if rank() == 0:
        try:
            answer = action(), ""
        except Exception as error:
            broadcast_object((None, _text(error)), 0, name=what)
            raise
    result, failure = broadcast_object(answer, 0, name=what)
    if failure:
        raise _first_failure(what, [failure])
    return result


def _first_failure(what: str, failures: Sequence[str]) -> RuntimeError:
    failed = next(number for number, text in enumerate(failures) if text)
    error = RuntimeError(f"{what} failed on rank {failed}: {failures[failed]}")
    return caused(error, Cause(Kind.CALL_FAILED, failed, what))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
