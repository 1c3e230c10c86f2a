# SPDX-License-Identifier: Apache-2.0
"""Whether an exception is the consequence of something on another rank, and of what.

Decided by the causes that the library gives, never by the words of an error. TensorFlow passes a
cause on in most places, and where it does not the library is asked what it has told TensorFlow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Optional

from hvd_tf import native
from hvd_tf.causes import Cause, Kind, cause_of, from_numbers

# Types of operations that pass the error of another one on, without its cause.
_HIDING_TYPES = ("PyFunc", "EagerPyFunc", "IteratorGetNext", "OneShotIterator", "MakeIterator")
# Longer chains of exceptions are not looked through.
_LONGEST_CHAIN = 100

_hidden: Optional[Cause] = None


def hide(cause: Optional[Cause]) -> None:
    """A cause that TensorFlow's datasets are going to be told of, which pass on the words alone.

    None: what was told is over, for the ranks have agreed on something since.
    """
    global _hidden
    _hidden = cause


def find_cause(error: BaseException) -> Optional[Cause]:
    """What lies behind the exception, or behind one that it was raised from or while handling."""
    chain = list(_chain(error))
    for link in chain:
        if found := cause_of(link) or _of_operation(link):
            return found
    if any(_may_hide(link) for link in chain):
        return _hidden or _ask(None)
    return None


def blames_peer(cause: Optional[Cause]) -> bool:
    """Whether another rank is at fault: then that one has more to say."""
    if cause is None or cause.kind is Kind.RANKS_DIFFER:
        return False
    return cause.rank != native.lib.hvd_rank()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """As Python prints it, from the last to the first."""
    link: Optional[BaseException] = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            return
        yield link
        # TensorFlow's sessions make a new error out of one that has the cause, and may then leave
        # that out of the traceback.
        printed = not link.__suppress_context__ or _is_tensorflows(link)
        link = link.__cause__ or (link.__context__ if printed else None)


def _is_tensorflows(error: BaseException) -> bool:
    return hasattr(error, "node_def") and hasattr(error, "error_code")


def _operation_of(error: BaseException) -> Any:
    """TensorFlow's, in a session; else None."""
    return getattr(error, "op", None) if _is_tensorflows(error) else None


def _of_operation(error: BaseException) -> Optional[Cause]:
    """The cause by which a collective of a graph has failed."""
    operation = _operation_of(error)
    if operation is None or not operation.type.startswith("Horovod"):
        return None
    attributes = operation.node_def.attr
    names = [name.decode() for name in attributes["tensor_names"].list.s]
    names.append(attributes["tensor_name"].s.decode() or operation.name)
    return next((cause for cause in map(_ask, names) if cause), None)


def _may_hide(error: BaseException) -> bool:
    """Whether it may be about an operation that passes on another's error."""
    operation = _operation_of(error)
    # Of functions and eager calls it is not known.
    return _is_tensorflows(error) and (
        operation is None or operation.type.startswith(_HIDING_TYPES)
    )


def _ask(name: Optional[str]) -> Optional[Cause]:
    rank = ctypes.c_int(-1)
    kind = native.lib.hvd_cause_of(None if name is None else name.encode(), ctypes.byref(rank))
    return from_numbers(kind, rank.value, name or "")
