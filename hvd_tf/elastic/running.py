# SPDX-License-Identifier: Apache-2.0
"""`run`: a function of a state goes on from the last commit where it can."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from hvd_tf._internal import blame, runtime
from hvd_tf._internal.causes import Kind
from hvd_tf.elastic.states import State
from hvd_tf.exceptions import HorovodInternalError, HostsUpdatedInterrupt

_Result = TypeVar("_Result")

# A program that fails in this way on all ranks can go on. Otherwise a rank has died or left, or the
# ranks do not run the same program.
_PASSING = (Kind.STEP_ABORTED, Kind.SCOPE_ENDED, Kind.RANK_RESTARTS, Kind.CALL_FAILED)
# So often a state is restored without a commit in between.
_LONGEST_RUN_OF_FAILURES = 3


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Has a function of a state go on from the last commit where it can.

    The function is called with the state, which is then that of rank 0 on every rank. It is called
    again after the state was restored and the runtime was started anew:

    - when it raises HorovodInternalError,
    - when a collective fails because of another rank that is still alive,
    - when it raises HostsUpdatedInterrupt; the state is not restored then.

    Make optimizers before it. One that is made within it has another name in the second call, but
    not on a rank that had failed before it made its first one.

    Every rank must come to the same: where one has left for good, by the end of its program or by
    `shutdown`, the others raise the error. After three failures without a commit in between, the
    error is raised. So let a commit come after some progress: there is no limit for a function that
    commits first and then fails each time. The state may be any object with the methods `sync`,
    `restore` and `on_reset`. Unless its class has `commit` from `State`, its commits are not seen:
    then it is three in all.
    """
    return run_fn(func, runtime.restart)


def run_fn(func: Callable[..., _Result], reset: Callable[[], object]) -> Callable[..., _Result]:
    """`run` with a new start of the runtime by the program's own function.

    Where that calls `shutdown`, all ranks must fail together: to its peers such a rank has left.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> _Result:
        skip_sync = False
        failures, committed = 0, _commits_of(state)
        while True:
            try:
                if not skip_sync:
                    state.sync()
                result = func(state, *args, **kwargs)
                break
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            except Exception as error:
                failures = failures + 1 if _commits_of(state) == committed else 1
                committed = _commits_of(state)
                if not _is_passing(error) or failures == _LONGEST_RUN_OF_FAILURES:
                    raise
                _tell_of(error)
                state.restore()
                skip_sync = False
            reset()
            state.on_reset()
        if isinstance(state, State):
            state._finish()
        return result

    return wrapper


def _tell_of(error: Exception) -> None:
    """A line for each way back: a function that commits and then fails may go on for ever."""
    words = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    text = f"hvd_tf.elastic: going back to the last commit after {words}"
    print(text, file=sys.stderr, flush=True)


def _commits_of(state: Any) -> int:
    commits: int = getattr(state, "_commits", 0)
    return commits


def _is_passing(error: Exception) -> bool:
    if isinstance(error, HorovodInternalError):
        return True
    cause = blame.find_cause(error)
    return cause is not None and cause.kind in _PASSING and blame.blames_peer(cause)
