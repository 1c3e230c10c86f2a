# SPDX-License-Identifier: Apache-2.0
"""Finds out whether an exception is due to another rank, and to which event there.

The causes that the library gives decide it, never the words of an error. TensorFlow passes a cause
on in most places. Where it does not, the library knows what it has told TensorFlow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Optional

from hvd_tf._internal import native
from hvd_tf._internal.causes import Cause, Kind, cause_of, from_numbers

# Types of operations that pass on the error of another operation, without its cause.
_HIDING_TYPES = ("PyFunc", "EagerPyFunc", "IteratorGetNext", "OneShotIterator", "MakeIterator")
# Chains of exceptions are searched up to this length.
_LONGEST_CHAIN = 100

_hidden: Optional[Cause] = None


def hide(cause: Optional[Cause]) -> None:
    """Keeps a cause that TensorFlow's datasets will lose, because they pass on the words alone.

    None: the last cause no longer counts, because the ranks have agreed on something since.
    """
    global _hidden
    _hidden = cause


def find_cause(error: BaseException) -> Optional[Cause]:
    """The cause of the exception, or of one that it was raised from or while handling."""
    chain = list(_chain(error))
    for link in chain:
        if found := cause_of(link) or _of_operation(link):
            return found
    hiding = [link for link in chain if _may_hide(link)]
    return _cause_behind(hiding) if hiding else None


def _cause_behind(errors: list[BaseException]) -> Optional[Cause]:
    """The cause of errors that may hide it.

    A dataset that has only read ahead fails for nobody, and the program goes on. So a dataset's
    cause is that of an error which has the name of its call.
    """
    last = _ask(None)
    hidden = _hidden
    if hidden is None:
        return last
    if hidden.kind is not Kind.SCOPE_ENDED or any(hidden.tensor in str(each) for each in errors):
        return hidden
    return None if last is not None and last.tensor == hidden.tensor else last


def blames_peer(cause: Optional[Cause]) -> bool:
    """Whether another rank is at fault. That rank's own error then says more."""
    if cause is None or cause.kind is Kind.RANKS_DIFFER:
        return False
    return cause.rank != native.lib.hvd_rank()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The chain of exceptions as Python prints it, from the last to the first."""
    link: Optional[BaseException] = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            return
        yield link
        # TensorFlow's sessions make a new error of the one that has the cause. They may leave the
        # latter out of the traceback.
        printed = not link.__suppress_context__ or _is_tensorflows(link)
        link = link.__cause__ or (link.__context__ if printed else None)


def _is_tensorflows(error: BaseException) -> bool:
    return hasattr(error, "node_def") and hasattr(error, "error_code")


def _operation_of(error: BaseException) -> Any:
    """The TensorFlow operation that failed in a session, or None."""
    return getattr(error, "op", None) if _is_tensorflows(error) else None


def _of_operation(error: BaseException) -> Optional[Cause]:
    """The cause of the failure of a graph's collective."""
    operation = _operation_of(error)
    if operation is None or not operation.type.startswith("Horovod"):
        return None
    attributes = operation.node_def.attr
    names = [name.decode() for name in attributes["tensor_names"].list.s]
    names.append(attributes["tensor_name"].s.decode() or operation.name)
    return next((cause for cause in map(_ask, names) if cause), None)


def _may_hide(error: BaseException) -> bool:
    """Whether the error may come from an operation that passes on another operation's error."""
    operation = _operation_of(error)
    # For functions and eager calls it is not known.
    return _is_tensorflows(error) and (
        operation is None or operation.type.startswith(_HIDING_TYPES)
    )


def _ask(name: Optional[str]) -> Optional[Cause]:
    rank, tensor = ctypes.c_int(-1), ctypes.c_char_p(b"")
    encoded = None if name is None else name.encode()
    kind = native.lib.hvd_cause_of(encoded, ctypes.byref(rank), ctypes.byref(tensor))
    # That may be the tensor of another call of the step, which is the one that says more.
    return from_numbers(kind, rank.value, (tensor.value or b"").decode(errors="replace"))
