# SPDX-License-Identifier: Apache-2.0
"""The names under which ranks find each other's gradients and variables.

They come from optimizer instances and variables, never from graph nodes. Retraces and name scopes
may differ between ranks. Instances and variables do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from hvd_tf._internal.compat import (
    Variable,
    graph_chain,
    tf_variable,
    v1,
)

DATA_PREFIX = "data/"  # of the names of all collectives of hvd_tf.data
GRADIENT_PREFIX = "gradient/"  # of all gradients' names; announced when a loop ends
BROADCAST_PREFIX = "broadcast/"  # of every broadcast variable's name
END_TOGETHER_PREFIX = "end_together_hook/"  # of how ranks agree on the end of a loop
ROOT_PREFIX = "root_variables/"  # of what else is sent for BroadcastGlobalVariablesHook

_COUNTER = re.compile(r"_\d+$")


def variable_names(variables: Sequence[Variable]) -> list[str]:
    """One name for each variable, without the ':0'. All names differ.

    Eager variables often share a name. So the second variable called "w" is "w#1", and so on. The
    order of `variables` must be the same on every rank.
    """
    plain = [_name_of(variable) for variable in variables]
    taken = set(plain)
    if len(taken) == len(plain):
        return plain
    seen: Counter[str] = Counter()
    names = []
    for name in plain:
        unique, count = name, seen[name]
        while count > 0 and unique in taken:
            unique = f"{name}#{count}"
            count += 1
        seen[name] = max(count, seen[name] + 1)
        taken.add(unique)
        names.append(unique)
    return names


def gradient_names(variables: Sequence[Variable]) -> list[str]:
    """The names that ranks match these variables' gradients by.

    Those of a model of Keras 3 depend on whether a rank has loaded the model or built it. So they
    go by place.
    """
    if any(isinstance(getattr(variable, "path", None), str) for variable in variables):
        return names_by_place(variables)
    return variable_names(variables)


def _name_of(variable: Variable) -> str:
    # The name of a Keras 3 variable is "kernel", its path "dense/kernel".
    path = getattr(variable, "path", None)
    if isinstance(path, str):
        return path
    try:
        return str(tf_variable(variable).name).partition(":")[0]
    except AttributeError:  # a tensor of eager code has no name
        return "tensor"


def names_by_place(variables: Sequence[Variable]) -> list[str]:
    """One name for each variable: its place, and the last part of its name: "2_of_8/kernel".

    For ranks with the same variables in the same order. What comes before the last part may differ:
    the scopes and layers of a model that Keras has loaded have other names than those of one that
    the same program has built. The number of variables tells most lists of a program apart.
    """
    lasts = [_name_of(variable).rpartition("/")[2] for variable in variables]
    of = f"of_{len(lasts)}"
    return [f"{place}_{of}/{without_counter(last)}" for place, last in enumerate(lasts)]


def without_counter(name: str) -> str:
    """The name without the number that TensorFlow and Keras add to one that is taken."""
    return _COUNTER.sub("", name)


def names_of_root(names: Sequence[str], of_root: Sequence[str]) -> list[str]:
    """The root's names of a rank's variables, in the order of `names`. All differ in each list.

    A name is that of the root, or is so without its first scope, on either side. An optimizer of
    Keras that has been loaded or restored lacks the scope that a fresh one has. Where that is not
    so for all names, but names at equal places are alike, they are matched by their places: a model
    of Keras that has been loaded lacks scopes, and its layers have other numbers.

    A name stays as it is where the root has no such variable, or several.
    """
    found = _names_by_scope(names, of_root)
    if set(found) == set(of_root) or len(names) != len(of_root):
        return found
    return list(of_root) if all(map(_are_alike, names, of_root)) else found


def _names_by_scope(names: Sequence[str], of_root: Sequence[str]) -> list[str]:
    left = set(names) ^ set(of_root)
    by_key: dict[str, list[str]] = {}
    for name in of_root:
        if name in left:
            by_key.setdefault(name, []).append(name)
            by_key.setdefault(f"/{name.partition('/')[2]}", []).append(name)
    found = []
    for name in names:
        # A scope is dropped on one side only: "a/kernel" and "b/kernel" are of two layers.
        keys = (f"/{name}", name.partition("/")[2]) if name in left else ()
        candidates = {one for key in keys for one in by_key.get(key, [])}
        found.append(candidates.pop() if len(candidates) == 1 else name)
    # Two variables under one name would be mixed up.
    return found if len(set(found)) == len(found) else list(names)


def _are_alike(a: str, b: str) -> bool:
    """Whether two names have the same last word, and one has all words of the other in order.

    A number after a word does not count: Keras numbers what has no name of its own.
    """
    parts = [re.split("[/_#]", name) for name in (a, b)]
    words, more = sorted(([w for w in of if not w.isdigit()] for of in parts), key=len)
    left = iter(more)
    return words[-1:] == more[-1:] and all(word in left for word in words)


def difference_of(names: set[str], of_root: set[str], at_most: int = 3) -> str:
    """The first few names that only one side has."""
    sides = [("has", sorted(names - of_root)), ("lacks", sorted(of_root - names))]
    return ", ".join(
        f"{verb} {', '.join(only[:at_most])}"
        + (f" and {len(only) - at_most} more" if len(only) > at_most else "")
        for verb, only in sides
        if only
    )


class _EagerCode:
    """Stands for the graph of eager code: Keras' clear_session changes that on one rank alone."""


_EAGER_CODE = _EagerCode()


class InstanceName:
    """A name for one optimizer, different from those of others that are at work beside it.

    In a graph of TF 1 instances are numbered in the order in which they first ask for a name there.
    So a rank that builds further graphs, for example for an evaluation, has the same numbers as the
    others.

    Eager code and tf.function may make optimizers on one rank alone: it loads the model, or its
    function of hvd.elastic.run failed before it came to a reduction. There an instance counts as
    the earlier one whose first variables had the same shapes. The two are not at work at once,
    unless they are in one graph, which tells them apart itself (tf_ops/adapter/matched_names.h).
    """

    # By outermost graph: who has the same name and process set. Serials, because the members of a
    # set that has the id of a removed one may have made different calls in that.
    _instances: WeakKeyDictionary[tf.Graph | _EagerCode, dict[tuple[str, int], list[Hashable]]] = (
        WeakKeyDictionary()
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self._ordinals: WeakKeyDictionary[tf.Graph | _EagerCode, int] = WeakKeyDictionary()

    def for_call(self, set_serial: int, variables: Sequence[Variable]) -> str:
        """The name for the operations of one call for these variables, in the current graph.

        A second call has the same one. Both calls' operations may run at once in a graph, which
        tells operations of one name apart itself. Only the graph that runs can do so: it may have
        the operations of several traces, and the same trace twice.
        """
        is_eager = v1.executing_eagerly_outside_functions()
        outermost = _EAGER_CODE if is_eager else [*graph_chain()][-1]
        if outermost not in self._ordinals:
            of_graph = self._instances.setdefault(outermost, {})
            others = of_graph.setdefault((self.name, set_serial), [])
            known_by = _shapes_of(variables) if is_eager else len(others)
            if known_by not in others:
                others.append(known_by)
            self._ordinals[outermost] = others.index(known_by)
        ordinal = self._ordinals[outermost]
        return self.name + (f"_{ordinal}" if ordinal else "")


def _shapes_of(variables: Sequence[Any]) -> Hashable:
    # Horovod's own helpers pass gradients in their place, of which some are None.
    return tuple((str(getattr(v, "shape", "")), str(getattr(v, "dtype", ""))) for v in variables)
