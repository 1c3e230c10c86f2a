# SPDX-License-Identifier: Apache-2.0
"""Training that goes on from its last commit after a failed collective or a new start of the job.

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    @hvd.elastic.run
    def train(state):
        while state.batch < 1000:
            step()
            state.batch += 1  # batches that are done
            if state.batch % 10 == 0:
                state.commit()

Where a collective fails and all ranks are alive, they restore their last commit and go on. Where a
rank dies, MPI ends the job. `hvdrun --restarts N` starts it again, and it goes on from the last
commit of rank 0: of the same program with the same arguments and state. The number of ranks stays
the same while a job runs: joining and leaving are not offered yet.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Optional, TypeVar

import numpy as np
import tensorflow as tf

from hvd_tf._internal import blame, commits, runtime
from hvd_tf._internal.accumulation import first_pass
from hvd_tf._internal.causes import Kind
from hvd_tf._internal.commits import CommitFile
from hvd_tf._internal.compat import Variable, executing_eagerly_outside_functions, v1
from hvd_tf._internal.compat.keras import (
    broadcast_variables_of,
    create_optimizer_variables,
    get_session,
    reset_passes,
    variables_of,
)
from hvd_tf.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from hvd_tf.functions import broadcast_object, broadcast_variables

_Result = TypeVar("_Result")

# A program that fails in this way on all ranks can go on. Otherwise a rank has died or left, or the
# ranks do not run the same program.
_PASSING = (Kind.STEP_ABORTED, Kind.SCOPE_ENDED, Kind.RANK_RESTARTS, Kind.CALL_FAILED)
# So often a state is restored without a commit in between.
_LONGEST_RUN_OF_FAILURES = 3

_numbers = itertools.count()


class State:
    """What a training needs to go on from a commit. The base of all states."""

    # Of the class, because a derived one may leave out __init__.
    _commits = 0
    _reset_callbacks: Sequence[Callable[[], Any]] = ()

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        """For derived classes, which find the arguments in the attributes that Horovod's have."""
        self._bcast_object = bcast_object
        self._rank = get_rank

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Have these called after each new start of the runtime, before the function goes on."""
        self._reset_callbacks = [*self._reset_callbacks, *callbacks]

    def on_reset(self) -> None:
        """Call `reset` and the callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: Any) -> None:
        """Horovod's driver calls it. Hosts do not come and go here, so nothing does."""

    def commit(self) -> None:
        """Save the state. Every rank commits at the same point of the program."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt if hosts came or went. They do not."""

    def save(self) -> None:
        """Keep the state in memory. On rank 0, where the job may start again, in a file too."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give every rank the state of rank 0, and save it. A collective call of all ranks."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called after each new start of the runtime."""

    def _finish(self) -> None:
        """Called when the function of `run` has returned."""


class ObjectState(State):
    """Python objects: attributes of the state, which pickle can store."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = runtime.rank,
        **kwargs: Any,
    ) -> None:
        """For one training.

        Args:
          bcast_object: gives every rank the object of rank 0, which is its only argument.
          get_rank: this rank.
          **kwargs: the attributes with their first values, such as epoch=0.
        """
        super().__init__()
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._names = list(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved: dict[str, Any] = copy.deepcopy(kwargs)
        self._number = next(_numbers)
        self._file: Optional[CommitFile] = None

    def save(self) -> None:
        """Keep copies of the attributes, and of what `_content` adds."""
        self._saved = self._copied()
        content = self._content()
        if self._rank() == 0:
            self._commit_file().write((self._saved, content))

    def restore(self) -> None:
        """Go back to the copies."""
        self._set(self._saved)

    def sync(self) -> None:
        """Give every rank the attributes of rank 0."""
        self._load()
        # A function of the program need not know names.
        named = self._bcast_object is broadcast_object
        name = {"name": f"elastic/{self._number}"} if named else {}
        self._set(self._bcast_object(self._copied(), **name))
        self.save()

    def _content(self) -> Any:
        """What else a file needs. Derived classes keep it in memory too."""
        return None

    def _set_content(self, content: Any) -> None:
        """Take what a file had."""

    def _finish(self) -> None:
        if self._file is not None:
            self._file.finish()

    def _load(self) -> None:
        """Before the first `sync` rank 0 goes on from what an earlier start of the job left."""
        if self._file is None and self._rank() == 0:
            found = self._commit_file().read()
            if found is not None:
                values, content = found
                self._set(values)
                self._set_content(content)

    def _commit_file(self) -> CommitFile:
        if self._file is None:
            of_state = f"{type(self).__module__}.{type(self).__qualname__}"
            identity = (*commits.program(), of_state, *self._names)
            self._file = CommitFile(self._number, identity=identity)
        return self._file

    def _copied(self) -> dict[str, Any]:
        return copy.deepcopy({name: getattr(self, name) for name in self._names})

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in copy.deepcopy(values).items():
            setattr(self, name, value)


class TensorFlowState(ObjectState):
    """TensorFlow variables beside Python objects."""

    def __init__(
        self,
        variables: Optional[Sequence[Variable]] = None,
        session: Optional[v1.Session] = None,
        **kwargs: Any,
    ) -> None:
        """For one training.

        Args:
          variables: None for all global variables of a graph of TF 1.
          session: of that graph.
          **kwargs: see `ObjectState`.
        """
        self._session = session
        self._variables = list(v1.global_variables() if variables is None else variables)
        self._values: list[np.ndarray] = []
        self._assign: Any = None
        self._broadcast: Any = None
        self._first_pass: Any = None
        super().__init__(**kwargs)
        self._values = self._read(self._all_variables())

    def save(self) -> None:
        """Keep copies in the host's memory."""
        self._values = self._read(self._all_variables())
        super().save()

    def restore(self) -> None:
        """Go back to the copies. In a session, with several passes, the next one is the first."""
        self._write(self._all_variables(), self._values)
        session = self._current_session()
        if session is not None:
            if self._first_pass is None:
                self._first_pass = first_pass(session.graph)
            session.run(self._first_pass)
        super().restore()

    def sync(self) -> None:
        """Give every rank the variables and attributes of rank 0."""
        self._load()
        session = self._current_session()
        if session is None:
            broadcast_variables(self._shared_variables(), 0)
        elif runtime.size() > 1:
            if self._broadcast is None:
                with session.graph.as_default():
                    self._broadcast = broadcast_variables(self._shared_variables(), 0)
            session.run(self._broadcast)
        super().sync()

    def _current_session(self) -> Optional[v1.Session]:
        """Has the variables, which are initialised. None: they are those of eager code."""
        return self._session

    def _all_variables(self) -> list[Variable]:
        return self._variables

    def _shared_variables(self) -> list[Variable]:
        return self._variables

    def _content(self) -> list[np.ndarray]:
        return self._values

    def _set_content(self, content: list[np.ndarray]) -> None:
        self._write(self._all_variables(), content)

    def _read(self, variables: list[Variable]) -> list[np.ndarray]:
        session = self._current_session()
        if session is None:
            return [np.array(variable) for variable in variables]
        return list(session.run(variables))

    def _write(self, variables: list[Variable], values: list[np.ndarray]) -> None:
        if len(values) != len(variables):
            raise ValueError(
                f"the commit has {len(values)} variables and this program {len(variables)}: it was "
                "left by another model. Remove its file from HVD_ELASTIC_DIR"
            )
        session = self._current_session()
        if session is None:
            for variable, value in zip(variables, values):
                variable.assign(value)
            return
        if self._assign is None:
            with session.graph.as_default():
                fed = [v1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
                assign = tf.group(*[v.assign(value) for v, value in zip(variables, fed)])
                self._assign = fed, assign
        fed, assign = self._assign
        session.run(assign, dict(zip(fed, values)))


class TensorFlowKerasState(TensorFlowState):
    """A model of Keras and its optimizer, beside Python objects."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """For one training.

        Args:
          model: built, so that its variables exist.
          optimizer: None for the model's own.
          backend: Keras' module whose session a graph of TF 1 runs in. None for that of
            tf.compat.v1.keras. Not used in eager code.
          **kwargs: see `ObjectState`.
        """
        is_eager = executing_eagerly_outside_functions()
        self._graph = None if is_eager else v1.get_default_graph()
        self._get_session = getattr(backend, "get_session", get_session)
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if not model.built:
            raise ValueError(
                f"the model {model.name} has no variables yet: build it, or call it once, before "
                "its state is made"
            )
        super().__init__(variables=[], **kwargs)

    def restore(self) -> None:
        """Go back to the copies. With several passes, the next one is the first."""
        super().restore()
        reset_passes(self.optimizer)

    def sync(self) -> None:
        """Give every rank the state of rank 0. With several passes, the next one is the first."""
        super().sync()
        reset_passes(self.optimizer)

    def _current_session(self) -> Optional[v1.Session]:
        if self._graph is None:
            return None
        with self._graph.as_default():
            return self._get_session()

    def _all_variables(self) -> list[Variable]:
        self._create_variables()
        return variables_of(self.model, self.optimizer)

    def _shared_variables(self) -> list[Variable]:
        self._create_variables()
        return broadcast_variables_of(self.model, (), self.optimizer)

    def _create_variables(self) -> None:
        """An optimizer makes its own late, and ranks may have come to different points."""
        with nullcontext() if self._graph is None else self._graph.as_default():
            create_optimizer_variables(self.optimizer, self.model.trainable_variables)


def run(func: Callable[..., _Result]) -> Callable[..., _Result]:
    """Have a function of a state go on from the last commit where it can.

    The function is called with the state, which is then that of rank 0 on every rank. It is called
    again after the state was restored and the runtime was started anew:

    - when it raises HorovodInternalError,
    - when a collective fails because of another rank that is still alive,
    - when it raises HostsUpdatedInterrupt; the state is not restored then.

    Make optimizers before it. One that is made within it has another name in the second call, but
    not on a rank that had failed before it made its first one.

    Every rank must come to the same: where one has left for good, by the end of its program or by
    `shutdown`, the others raise the error. After three failures without a commit in between, the
    error is raised. The state may be any object with the methods `sync`, `restore` and `on_reset`.
    Unless its class has `commit` from `State`, its commits are not seen: then it is three in all.
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
                state.restore()
                skip_sync = False
            runtime.restart()
            state.on_reset()
        if isinstance(state, State):
            state._finish()
        return result

    return wrapper


def _commits_of(state: Any) -> int:
    commits: int = getattr(state, "_commits", 0)
    return commits


def _is_passing(error: Exception) -> bool:
    if isinstance(error, HorovodInternalError):
        return True
    cause = blame.find_cause(error)
    return cause is not None and cause.kind in _PASSING and blame.blames_peer(cause)
