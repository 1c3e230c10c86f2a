# SPDX-License-Identifier: Apache-2.0
"""`EndTogetherHook`: ranks that run out of data at different steps end together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Optional

import tensorflow as tf

from hvd_tf._internal.blame import find_cause
from hvd_tf._internal.causes import Cause, Kind, caused
from hvd_tf._internal.compat import v1
from hvd_tf._internal.hooks import announce_hook, announced_hooks
from hvd_tf._internal.last_rank import wait_for_last
from hvd_tf._internal.names import END_TOGETHER_PREFIX
from hvd_tf._internal.objects import allgather_object
from hvd_tf._internal.root_variables import LateRootVariables
from hvd_tf._internal.runtime import rank, size
from hvd_tf._internal.scopes import end_steps, end_training
from hvd_tf._internal.step_data import hold_back_gradients

_NAME = END_TOGETHER_PREFIX.rstrip("/")
_HOOK = "EndTogetherHook"

# How a rank's step, or its loop, has ended.
_LEFT = "left"  # the loop is over: the last step, a hook that stops it, or the program
_ENDED = "ended"  # the step found no more data
_TOLD = "told"  # the step failed because a peer's gradients will not come
_FAILED = "failed"  # anything else
_CALLS = "calls"  # it has not ended: it calls the ranks that wait


class _End(NamedTuple):
    """How a rank has ended, and in words."""

    state: str
    text: str
    tensor: str = ""
    """What the rank was told about. Empty: nothing."""


class EndTogetherHook(v1.train.SessionRunHook):
    """Ranks with different numbers of batches end their training loops together.

    Without it, a rank that runs out of data ends, and the others fail, because they still wait for
    its gradients. With it hooks see an ordinary end on every rank, and the last checkpoint is
    saved. A program that catches tf.errors.OutOfRangeError to read its data again sees it on every
    rank.

    - when="first": all ranks end with the first whose data ends, at the same global step. A batch
      that another rank has begun with is lost.
    - when="last": a rank whose data ends waits (`hvd.join`), and the others go on without it until
      the last one's data ends. No batch is lost. Then all ranks take the last one's variables and
      global step, also rank 0, whose last checkpoint has them. With
      `backward_passes_per_step=k` a rank's last passes count only if they are k.

    A rank that ends its loop for another reason ends it for all, whatever `when` is: its last step
    (`max_steps`, `StopAtStepHook`, which count the steps of the ranks that go on), a hook that
    stops it, or a program that leaves it.

    The ranks agree with a few messages at the end of the loop. Steps cost nothing more. If a rank's
    step fails with an error, every rank raises an error, as without this hook. Only the steps of
    the loop count: what hooks run in the session by themselves may end or fail as it likes. In
    `run_step_fn` a step is `run_with_hooks`, which has to read the data too.

    Every rank must pass this hook and BroadcastGlobalVariablesHook, which checks that.
    """

    def __init__(self, when: str = "first") -> None:
        """when: "first" or "last", the same on every rank.

        Raises:
          ValueError: anything else.
        """
        super().__init__()
        if when not in ("first", "last"):
            raise ValueError(f'EndTogetherHook: when must be "first" or "last". Received: {when!r}')
        self.when = when
        # Whether the ranks have since the last step began; and whether one has left its loop.
        self._agreed = False
        self._over = False
        self._graph: Optional[tf.Graph] = None
        self._variables: Optional[LateRootVariables] = None
        self._action: Optional[Callable[[int], None]] = None

    def begin(self) -> None:
        """Lets BroadcastGlobalVariablesHook know that this rank has the hook.

        Raises ValueError where the session has one for "first" besides one for "last".
        """
        graph = v1.get_default_graph()
        # The other way round it may be of an earlier session.
        if self.when == "last" and f"{_HOOK}(first)" in announced_hooks(graph):
            raise ValueError(
                f"a session has both {_HOOK}(first) and {_HOOK}(last), and ranks cannot end "
                "in both ways: pass one, to train or TrainSpec and not to EstimatorSpec"
            )
        announce_hook(f"{_HOOK}({self.when})")
        if self.when == "last" and size() > 1 and self._graph is not graph:
            self._graph = graph
            hold_back_gradients()
            self._variables = LateRootVariables()

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        """Watches the session's steps, because a hook is not told when one fails."""
        del coord
        self._agreed = self._over = False
        if size() == 1:
            return
        run = session.run

        @functools.wraps(run)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return run(*args, **kwargs)
            except tf.errors.OpError as error:
                if self._agreed or not _is_step(args, kwargs):
                    raise
                self._after_failure(error, session)

        session.run = watched

    def before_run(self, run_context: Any) -> None:
        """A step begins. It may follow an end of the data, if a program reads its data again."""
        del run_context
        self._agreed = self._over

    def end(self, session: v1.Session) -> None:
        """The loop has ended on this rank. End it on the others."""
        if size() == 1 or self._agreed:
            return
        step = v1.train.get_global_step(session.graph)
        where = "" if step is None else f" at global step {session.run(step)}"
        try:
            self._agree(_End(_LEFT, f"its training loop ended{where}"), session)
        except tf.errors.UnknownError as error:
            # A peer is lost, and has its own report. This rank's training is complete.
            v1.logging.warning("EndTogetherHook: the other ranks have not ended: %s", error.message)

    def call_when_asked(self, action: Callable[[int], None]) -> None:
        """What a rank that waits does when the others `call` it. It gets their number."""
        self._action = action

    def call(self, number: int) -> None:
        """Gets the ranks that wait to do the action with this number, which all ranks then do.

        All ranks that go on call it after the same step.
        """
        if self.when == "last" and size() > 1:
            wait_for_last()
            allgather_object(_End(_CALLS, str(number)), name=_NAME)

    def _after_failure(self, error: tf.errors.OpError, session: v1.Session) -> NoReturn:
        """Raises what the step's failure means, given how the other ranks have ended."""
        mine = _end_of(error)
        try:
            ends = self._agree(mine, session)
            if not self._over:
                # Every rank's step has failed. Programs may go on, but no rank before every rank
                # has sent this message.
                end_training("")
                allgather_object(None, name=f"{_NAME}/taken_back")
        except tf.errors.UnknownError:  # a peer is lost, or has gone on by itself
            if mine.state == _ENDED and self.when == "last":
                raise  # this rank's error would be an ordinary end
            raise error from None  # it says more
        states = [end.state for end in ends]
        first = next((peer for peer, how in enumerate(states) if how in (_LEFT, _ENDED)), None)
        if self.when == "last":
            _raise_failures(mine, ends)
        if mine.state == _ENDED or first is None or _FAILED in states:
            raise error
        message = f"rank {first} ended its training loop, so rank {rank()} does at the same step"
        v1.logging.info("EndTogetherHook: %s", message)
        # MonitoredSession takes this for an ordinary end of the data.
        raise tf.errors.OutOfRangeError(None, None, message) from error

    def _agree(self, mine: _End, session: v1.Session) -> list[_End]:
        """How all ranks have ended, once every rank's step has failed or its loop is over.

        Raises UnknownError where a peer is lost, or has gone on to another training by itself.
        """
        self._agreed = True
        try:
            return self._agreed_ends(mine, session)
        except tf.errors.UnknownError:
            end_steps(session.graph, "")
            raise

    def _agreed_ends(self, mine: _End, session: v1.Session) -> list[_End]:
        last = None
        if self.when == "first" or mine.state != _ENDED:
            end_training(mine.text)
            end_steps(session.graph, mine.text)
        if self.when == "first":
            ends = _tell(mine)
        else:
            if mine.state != _ENDED:
                # First all ranks that go on learn that this one does not. Nobody would wait for it
                # once it has joined.
                allgather_object(None, name=f"{_NAME}/told")
            last, ends = self._wait(mine)
        # All ranks have left their steps. Other hooks may run parts of the graph now.
        end_steps(session.graph, "")
        allgather_object(None, name=f"{_NAME}/all_have_ended")
        states = [end.state for end in ends]
        self._over = _LEFT in states
        if last is not None and set(states) <= {_ENDED, _LEFT, _TOLD}:
            assert self._variables is not None
            # A loop that was left has ended after a whole step. Nobody has taken more of them.
            root = states.index(_LEFT) if self._over else last
            if self._over or _TOLD not in states:
                self._variables.broadcast(session, root)
        return ends

    def _wait(self, mine: _End) -> tuple[int, list[_End]]:
        """Waits until all ranks have ended. Answers calls meanwhile. Returns the last rank too."""
        while True:
            last = wait_for_last()
            ends = _tell(mine)
            call = next((end for end in ends if end.state == _CALLS), None)
            if call is None:
                return last, ends
            if self._action is not None:
                self._action(int(call.text))


def _is_step(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it is a run of MonitoredSession for its caller, and not one that a hook makes."""
    fetches = kwargs.get("fetches", args[0] if args else None)
    return isinstance(fetches, dict) and "caller" in fetches


def _tell(mine: _End) -> list[_End]:
    ends: list[_End] = allgather_object(mine, name=_NAME)
    return ends


def _end_of(error: tf.errors.OpError) -> _End:
    # Peers were told by an announcement, or by the step that this rank has aborted.
    if isinstance(error, tf.errors.OutOfRangeError):
        return _End(_ENDED, "it has no more data")
    # Errors of the program's own Python functions are UnknownError too.
    cause = find_cause(error) if isinstance(error, tf.errors.UnknownError) else None
    if cause is not None and error.op is not None and error.op.type.startswith("Horovod"):
        return _End(_TOLD, "its training step failed as well", cause.tensor)
    # TensorFlow's account of the node comes before the message.
    head = "Graph execution error:"
    lines = [line for line in error.message.splitlines() if line and line != head] or [""]
    start = next((i + 1 for i, line in enumerate(lines) if line.startswith("Node: ")), 0)
    what = f"{type(error).__name__}: {lines[min(start, len(lines) - 1)]}"
    # That of a dataset may be due to a peer. Its own words say more, then too.
    state, tensor = (_FAILED, "") if cause is None else (_TOLD, cause.tensor)
    return _End(state, f"its training step failed: {what}", tensor)


def _raise_failures(mine: _End, ends: Sequence[_End]) -> None:
    """Raises what a rank that has waited must not take for an ordinary end."""
    for peer, end in enumerate(ends):
        if end.state == _FAILED and mine.state == _ENDED:
            message = f"EndTogetherHook: rank {peer} failed while this rank waited: {end.text}"
            error = tf.errors.UnknownError(None, None, message)
            raise caused(error, Cause(Kind.STEP_ABORTED, peer))
    states = [end.state for end in ends]
    if set(states) == {_ENDED, _TOLD}:
        tensor = next((end.tensor for end in ends if end.tensor), "unknown")
        raise RuntimeError(
            f'EndTogetherHook(when="last"): the data of rank {states.index(_ENDED)} ended in a '
            f"step in which it had begun to send the tensor {tensor}, so the step of the others "
            "is lost. Compute the tensor under tf.control_dependencies of the step's batch, or "
            'pass when="first"'
        )
