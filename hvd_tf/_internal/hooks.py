# SPDX-License-Identifier: Apache-2.0
"""`BroadcastGlobalVariablesHook`: starts ranks with equal variables, and announces the end."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional
from weakref import WeakKeyDictionary

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.facts import TRAINED_ALREADY, check_same_sets, exchange_at
from hvd_tf._internal.root_variables import RootVariables
from hvd_tf._internal.runtime import size
from hvd_tf._internal.scopes import end_training, has_gradients, leave_training

_LEFT_EARLY = f"If that rank did not train at all: {TRAINED_ALREADY}"


class BroadcastGlobalVariablesHook(v1.train.SessionRunHook):
    """Gives every rank the root's global variables when a session has been made.

    It is for Estimator, MonitoredTrainingSession and anything else that runs hooks. Pass one on
    every rank, before hooks that read the global step when the session is made, such as
    `StopAtStepHook(num_steps=...)`. Only the root restores a checkpoint. The others take its
    variables and its global step. One hook may serve several training calls.

    When the loop ends on one rank, the hook tells ranks that go on training. They would wait for
    gradients that do not come.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        """root_rank: a rank of the job. device: for the broadcasts. "" leaves it to TensorFlow."""
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Optional[tf.Operation] = None
        self._graph: Optional[tf.Graph] = None
        self._variables: Optional[RootVariables] = None

    def begin(self) -> None:
        """Builds the operations. Raises ValueError before `init`."""
        graph = v1.get_default_graph()
        if self._graph is graph:
            return
        self._graph = graph
        _announced_in(graph).append(f"BroadcastGlobalVariablesHook({self.root_rank})")
        if size() == 1:
            self.bcast_op = tf.no_op(name="broadcast_variables")
            return
        self._variables = RootVariables(self.root_rank, self.device)
        self.bcast_op = self._variables.broadcast_op

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Compares the ranks' hooks and lists of variables, then takes the root's values.

        Raises ValueError on every rank if the lists differ, and tf.errors.UnknownError if a peer
        has left.
        """
        del coord
        if self._variables is None:  # one rank
            return
        # A peer that waits for this rank's gradients now is in a session that this rank has left.
        leave_training(
            "it is starting a training session, in BroadcastGlobalVariablesHook. Pass that hook on "
            "every rank, and start a session anew on all ranks or on none"
        )
        try:
            _check_announced(session.graph, self.root_rank)
            self._variables.check(session)
            # Every rank has left its earlier session. No rank gets past the broadcast before every
            # rank has sent this message.
            leave_training("")
            self._variables.broadcast(session)
        except tf.errors.UnknownError as error:
            message = f"{error.message} {_LEFT_EARLY}"
            raise type(error)(error.node_def, error.op, message) from error

    def end(self, session: v1.Session) -> None:
        """Tells the peers that this rank's loop has ended, and at which step."""
        # Predictions within a training end at another time on each rank, and the training goes on.
        if size() == 1 or not has_gradients(session.graph):
            return
        step = v1.train.get_global_step(session.graph)
        where = "" if step is None else f" at global step {session.run(step)}"
        end_training(
            f"its training loop ended{where}. Every rank must end at the same "
            "step: give all the same last step and equally many batches, and list "
            "BroadcastGlobalVariablesHook before StopAtStepHook(num_steps=...)"
        )


# By graph: the texts of the hooks that need all ranks. BroadcastGlobalVariablesHook has a text for
# each, because a rank with another one more would wait for ever.
_announced: WeakKeyDictionary[tf.Graph, list[str]] = WeakKeyDictionary()


def announce_hook(text: str) -> None:
    """Call it in the `begin` of a hook that needs all ranks. `text` must be equal on all.

    BroadcastGlobalVariablesHook compares the texts. So a rank without the hook is named at the
    start, and does not keep the others waiting.
    """
    announced = _announced_in(v1.get_default_graph())
    if text not in announced:
        announced.append(text)


def announced_hooks(graph: tf.Graph) -> list[str]:
    """The hooks that need all ranks, in words, once the `begin` of all hooks is over."""
    return list(_announced_in(graph))


def _announced_in(graph: tf.Graph) -> list[str]:
    return _announced.setdefault(graph, [])


def _check_announced(graph: tf.Graph, root_rank: int) -> None:
    mine = [
        f"{count} {text}" if count > 1 else text
        for text, count in sorted(Counter(_announced_in(graph)).items())
    ]
    everyones = exchange_at("start a training session", {"hooks": mine}, TRAINED_ALREADY)
    check_same_sets(
        [theirs["hooks"] for theirs in everyones],
        root_rank,
        "the hooks",
        "some of them need all ranks: pass the same ones on every rank",
    )
