# SPDX-License-Identifier: Apache-2.0
"""States of TensorFlow variables and of Keras models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf._internal import runtime
from hvd_tf._internal.accumulation import first_pass
from hvd_tf._internal.compat import (
    Variable,
    executing_eagerly_outside_functions,
    tf_variable,
    v1,
)
from hvd_tf._internal.compat.adapted_layers import refresh_adapted
from hvd_tf._internal.compat.keras import (
    broadcast_variables_of,
    create_optimizer_variables,
    get_session,
    reset_passes,
    variables_of,
)
from hvd_tf._internal.variables import broadcast_variables
from hvd_tf.elastic.states import ObjectState


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
          session: of that graph. None: the default one.
          **kwargs: see `ObjectState`.
        """
        if session is None and not executing_eagerly_outside_functions():
            session = v1.get_default_session()
        self.session = session
        self.variables = list(v1.global_variables() if variables is None else variables)
        self._kept: list[Variable] = []
        self._values: list[np.ndarray] = []
        self._assign: Any = None
        self._broadcast: Any = None
        self._first_pass: Any = None
        super().__init__(**kwargs)
        self._keep()

    def save(self) -> None:
        """Keeps copies in the host's memory."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """Goes back to the copies. In a session, with several passes, the next one is the first."""
        self._write(self._kept, self._values)
        session = self._current_session()
        if session is not None:
            if self._first_pass is None:
                self._first_pass = first_pass(session.graph)
            session.run(self._first_pass)
        super().restore()

    def _share(self) -> None:
        session = self._current_session()
        if session is None:
            broadcast_variables(self._shared_variables(), 0)
        elif runtime.size() > 1:
            if self._broadcast is None:
                with session.graph.as_default():
                    self._broadcast = broadcast_variables(self._shared_variables(), 0)
            session.run(self._broadcast)

    def _current_session(self) -> Optional[v1.Session]:
        """Has the variables, which are initialised. None: they are those of eager code."""
        return self.session

    def _all_variables(self) -> list[Variable]:
        return self.variables

    def _shared_variables(self) -> list[Variable]:
        return self.variables

    def _content(self) -> list[np.ndarray]:
        return self._values

    def _set_content(self, content: list[np.ndarray], path: Path) -> None:
        variables = list(self._all_variables())
        _check_fit(content, variables, path)
        self._write(variables, content)
        self._kept, self._values = variables, content

    def _keep(self) -> None:
        # Later there may be more: a legacy optimizer makes slots of a layer that was frozen.
        variables = list(self._all_variables())
        self._kept, self._values = variables, self._read(variables)

    def _read(self, variables: list[Variable]) -> list[np.ndarray]:
        session = self._current_session()
        if session is not None:
            return list(session.run(variables))
        if variables and not executing_eagerly_outside_functions():
            raise ValueError(
                "a state of variables of a graph, made where no session is the default one: make "
                "it within `with session.as_default():`, or pass session="
            )
        return [np.array(variable) for variable in variables]

    def _write(self, variables: list[Variable], values: list[np.ndarray]) -> None:
        session = self._current_session()
        if session is None:
            for variable, value in zip(variables, values):
                variable.assign(value)
            return
        places = [id(variable) for variable in variables]
        if self._assign is None or self._assign[0] != places:
            with session.graph.as_default():
                fed = [v1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
                assign = tf.group(*[v.assign(value) for v, value in zip(variables, fed)])
                self._assign = places, fed, assign
        _, fed, assign = self._assign
        session.run(assign, dict(zip(fed, values)))


def _check_fit(values: list[np.ndarray], variables: list[Variable], path: Path) -> None:
    """Raises ValueError where a file's values are not those of these variables."""
    remedy = f"it was left by another model. Remove {path} to begin anew"
    if len(values) != len(variables):
        raise ValueError(
            f"the commit has {len(values)} variables and this program {len(variables)}: {remedy}"
        )
    for variable, value in zip(map(tf_variable, variables), values):
        if not variable.shape.is_compatible_with(value.shape):
            raise ValueError(
                f"the commit has a value of shape {value.shape}, and '{variable.name}' has "
                f"{tuple(variable.shape)}: {remedy}"
            )


class TensorFlowKerasState(TensorFlowState):
    """A model of Keras and its optimizer, beside Python objects."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """For one training.

        Args:
          model: built, so that its variables exist. A tf.Module will do, too.
          optimizer: None for the model's own. It is built for the model's variables. One that
            trains others besides must be built before, by `optimizer.build(all_of_them)`, but for
            legacy ones and those of tf.compat.v1.train.
          backend: Keras' module whose session a graph of TF 1 runs in. None for that of
            tf.compat.v1.keras. Not used in eager code.
          **kwargs: see `ObjectState`.
        """
        is_eager = executing_eagerly_outside_functions()
        self._graph = None if is_eager else v1.get_default_graph()
        self.backend = backend
        self._get_session = getattr(backend, "get_session", get_session)
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        if not getattr(model, "built", True):  # a tf.Module has its variables from the start
            raise ValueError(
                f"the model {model.name} has no variables yet: build it, or call it once, before "
                "its state is made"
            )
        super().__init__(variables=[], **kwargs)

    def restore(self) -> None:
        """Goes back to the copies. With several passes, the next one is the first."""
        super().restore()
        reset_passes(self._used_optimizer())

    def sync(self) -> None:
        """Gives every rank the state of rank 0. With several passes, the next one is the first."""
        super().sync()
        reset_passes(self._used_optimizer())

    def _share(self) -> None:
        super()._share()
        refresh_adapted(self.model)

    def _write(self, variables: list[Variable], values: list[np.ndarray]) -> None:
        super()._write(variables, values)
        refresh_adapted(self.model)

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
            create_optimizer_variables(self._used_optimizer(), self.model.trainable_variables)

    def _used_optimizer(self) -> Any:
        """The model may have been compiled later."""
        return getattr(self.model, "optimizer", None) if self.optimizer is None else self.optimizer
