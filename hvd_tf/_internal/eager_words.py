# SPDX-License-Identifier: Apache-2.0
"""Runs operations whose names and scale factors may be other ones in every eager call.

They are attributes. TensorFlow's eager context keeps a kernel for each set of attributes for ever:
some 50 KB. So only the first ones of a process are attributes, and later ones that come again.
Other calls put theirs into a table of the library (tf_ops/adapter/eager_words.h), from which the
kernel takes them. The attribute then says in which place of the table. Such a call costs some 20 us
more, a new kernel milliseconds.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_tf._internal import native
from hvd_tf._internal.known_bytes import with_known_bytes

_MOST_AS_ATTRIBUTES = 1000
_MOST_REPEATED = 4000  # of later ones
_REPEATED = 3  # so often within the last _REMEMBERED different ones
_REMEMBERED = 4096
_IN_PLACE = "hvd_tf.words."  # tf_ops/adapter/eager_words.cc knows it
_PLACES = 64  # EagerWordsTable::kPlaces
_ONE = "1"
_KEYS = ("tensor_name", "exact_prescale", "exact_postscale")

_Words = tuple[Any, Any, Any]

# What eager calls may go on to have as attributes.
_as_attributes: set[_Words] = set()
# How often others were used, the least recent first.
_uses: OrderedDict[_Words, int] = OrderedDict()
# By the id of an output: what its gradient needs to know of its call. TensorFlow 2.15 would never
# free an attribute of an eager tensor.
_kept: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}


def run_operation(operation: Callable[..., Any], **arguments: Any) -> Any:
    """Calls an operation of `native.ops` that has a `tensor_name`, and perhaps scale factors."""
    get = arguments.get
    words = (get("tensor_name"), get("exact_prescale"), get("exact_postscale"))
    if not tf.executing_eagerly():
        return with_known_bytes(operation(**arguments))
    if words in _as_attributes:
        return operation(**arguments)
    is_like_ours = tf.compat.as_str(words[0]).startswith(_IN_PLACE)
    if not is_like_ours and _may_be_attributes(words):
        _as_attributes.add(words)
        return operation(**arguments)
    name, *scales = (tf.compat.as_bytes(_ONE if word is None else word) for word in words)
    number = native.lib.hvd_put_eager_words(name, len(name), *scales)
    if number < 0:  # so many calls are under way
        return operation(**arguments)
    kept = {key: arguments[key] for key in _KEYS if key in arguments}
    told = {**arguments, **dict.fromkeys(kept, _ONE)}
    told["tensor_name"] = f"{_IN_PLACE}{number % _PLACES}"
    try:
        result = operation(**told)
    except BaseException:
        native.lib.hvd_drop_eager_words(number)
        raise
    output = result
    while isinstance(output, (list, tuple)):
        output = output[0]
    if output is not None:
        _keep(output, kept)
    return result


def _keep(output: Any, words: dict[str, Any]) -> None:
    key = id(output)
    _kept[key] = (weakref.ref(output, lambda _: _kept.pop(key, None)), words)


def _may_be_attributes(words: _Words) -> bool:
    if len(_as_attributes) < _MOST_AS_ATTRIBUTES:
        return True
    if len(_as_attributes) >= _MOST_AS_ATTRIBUTES + _MOST_REPEATED:
        return False
    uses = _uses.pop(words, 0) + 1
    if uses == _REPEATED:
        return True
    _uses[words] = uses
    if len(_uses) > _REMEMBERED:
        _uses.popitem(last=False)
    return False


def word_of(operation: Any, key: str) -> str:
    """`tensor_name` or a scale factor of a forward operation, for its gradient.

    Raises:
      RuntimeError: forward mode asks for it, which sees attributes alone.
    """
    if not tf.compat.as_str(operation.get_attr("tensor_name")).startswith(_IN_PLACE):
        return tf.compat.as_str(operation.get_attr(key))
    _, kept = _kept.get(id(operation.outputs[0]), (None, None))
    if kept is None:
        raise RuntimeError(
            "tf.autodiff.ForwardAccumulator: an eager collective has no forward derivative after "
            f"{_MOST_AS_ATTRIBUTES} different names and scale factors, unless it has had its own a "
            "few times: give calls the same name= again and again, or call it in a tf.function"
        )
    return tf.compat.as_str(kept[key])
