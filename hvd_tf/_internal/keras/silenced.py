# SPDX-License-Identifier: Apache-2.0
"""Callbacks of which only the program's own part is called, because another rank does Keras' part.

A program's class may derive from one of Keras that writes files. Its own methods may do anything,
such as an average over the ranks. So they are called on every rank, and only what they inherit does
nothing. What they inherit may be what calls them: then that part is left, and writes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import is_of_keras
from hvd_tf._internal.compat.keras_fit import FILE_METHODS, FILE_WRITERS, SAVE_METHOD


def class_of_keras(callback: Any, name: str) -> Optional[type]:
    """The class of Keras with this name that a callback is of. None: there is none."""
    classes = (cls for cls in type(callback).__mro__ if cls.__name__ == name and is_of_keras(cls))
    return next(classes, None)


def is_plain(callback: Any) -> bool:
    """Whether it has no method of the program's own."""
    return is_of_keras(type(callback)) or type(callback).__module__.startswith("hvd_tf.")


def silence(callback: Any, inherited: Any) -> Callable[[], None]:
    """Have the methods that a callback inherits from `inherited` do nothing.

    Returns what takes that back.
    """
    own_class: Any = type(callback)
    callback.__class__ = _silenced(own_class, inherited)
    return functools.partial(setattr, callback, "__class__", own_class)


@functools.cache
def _silenced(own_class: Any, inherited: Any) -> Any:
    base = next(cls for cls in inherited.__mro__ if cls.__name__ == "Callback")
    mro = own_class.__mro__
    saves = hasattr(inherited, SAVE_METHOD) and any(
        SAVE_METHOD in vars(cls) for cls in mro[: mro.index(inherited)]
    )
    methods: dict[str, Any] = {
        name: getattr(base, name, _do_nothing)
        for name in dir(inherited)
        if (name.startswith("on_") and not saves) or name in FILE_METHODS
    }
    for name in FILE_WRITERS:
        if hasattr(inherited, name):
            methods[name] = property(_no_writer)
    # Between the program's class and Keras': `super()` in the former finds the latter's methods
    # here.
    quiet = type(inherited)(inherited.__name__, (inherited,), methods)
    names = {"__module__": own_class.__module__, "__qualname__": own_class.__qualname__}
    return type(own_class)(own_class.__name__, (own_class, quiet), names)


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def _no_writer(_: Any) -> Any:
    return tf.summary.create_noop_writer()
