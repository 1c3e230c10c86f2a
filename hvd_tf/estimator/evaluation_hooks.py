# SPDX-License-Identifier: Apache-2.0
"""Refuses hooks of an evaluation that would wait for ranks which have no batch left."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.hooks import announced_hooks
from hvd_tf._internal.runtime import size
from hvd_tf.estimator.collectives import WAITS, collective_among
from hvd_tf.estimator.metric_state import operations_of

_REMEDY = "evaluate adds up the metrics of all ranks itself: pass the hook to the training only"


class HookGuard(v1.train.SessionRunHook):
    """Raises ValueError before the session runs a collective of another hook. It comes first.

    Ranks have different numbers of batches. So collectives are refused between the first batch and
    the last one, and at any time if this rank evaluates alone. Before and after, all ranks meet.
    """

    def __init__(self, alone: bool) -> None:
        self._alone = alone
        self._refuses = alone
        # Elements of the graph that need no collective.
        self._allowed: set[Any] = set()

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Watches the session's runs: those of the steps, and those that hooks make."""
        del coord
        if size() == 1:
            return
        if self._alone and (hooks := announced_hooks(session.graph)):
            raise ValueError(
                f"evaluate: rank 0 evaluates alone, but {', '.join(hooks)} would wait for the "
                f"other ranks. {_REMEDY}"
            )
        run = session.run

        @functools.wraps(run)
        def watched(fetches: Any, *args: Any, **kwargs: Any) -> Any:
            if self._refuses:
                self._check(fetches, session.graph)
            return run(fetches, *args, **kwargs)

        session.run = watched

    def before_run(self, run_context: Any) -> None:
        """The first step begins, or another one."""
        del run_context
        self._refuses = True

    def end(self, session: v1.Session) -> None:
        """The last batch is done, and the other hooks' `end` follows."""
        del session
        self._refuses = self._alone

    def _check(self, fetches: Any, graph: tf.Graph) -> None:
        # In a step these are the fetches by hook, and "caller".
        parts = fetches if isinstance(fetches, dict) else {"": fetches}
        for owner, part in parts.items():
            elements = _elements(part, graph)
            if self._allowed.issuperset(elements):
                continue
            if found := collective_among(operations_of(elements)):
                is_known = isinstance(owner, v1.train.SessionRunHook)
                name = type(owner).__name__ if is_known else "a hook"
                raise ValueError(
                    f"evaluate: {name} needs a collective between batches, {found}. {WAITS}. "
                    f"{_REMEDY}"
                )
            self._allowed.update(elements)


def _elements(fetches: Any, graph: tf.Graph) -> list[Any]:
    """The tensors and operations that the fetches stand for. A run itself refuses what is none."""
    elements = []
    for item in tf.nest.flatten(fetches, expand_composites=True):
        try:
            elements.append(graph.as_graph_element(item))
        except (TypeError, ValueError, KeyError):
            pass
    return elements
