# SPDX-License-Identifier: Apache-2.0
"""`horovod.tensorflow.util`: helpers that programs borrow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from horovod.common.util import check_extension as check_extension
from horovod.common.util import split_list as split_list


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def _has_eager() -> bool:
    return True


def _make_subgraph(function: Callable[..., Any]) -> Any:
    return tf.function(function)


def _cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers what the function returned for the same arguments, which are hashable."""
    return functools.lru_cache(maxsize=None)(function)


def vars_to_refs(variables: Any) -> Any:
    """References of variables, which can be hashed, in the same structure of tuples."""
    if isinstance(variables, (list, tuple)):
        return tuple(map(vars_to_refs, variables))
    return variables.ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of `vars_to_refs`, in lists."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
