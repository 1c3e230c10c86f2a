# SPDX-License-Identifier: Apache-2.0
"""What is private in Keras 3: its backend's name, and two methods that need a hook."""

from __future__ import annotations

import functools
import sys
from typing import Any

import tensorflow as tf

from hvd_tf._internal.compat import v1, variable_key


def backend_of_keras_3() -> str:
    """The backend of Keras 3, which has been imported, such as "tensorflow"."""
    return str(sys.modules["keras"].backend.backend())


def build_optimizer(optimizer: Any, variables: Any) -> None:
    """Make the variables of an optimizer as its own `apply` does. Nothing if they are there.

    Legacy optimizers of Keras 2 make theirs by themselves, wherever they are called.
    """
    if hasattr(optimizer, "compute_gradients"):  # Keras 2
        if hasattr(optimizer, "build"):
            with tf.name_scope(optimizer.name or "optimizer"), tf.init_scope():
                optimizer.build(variables)
        return
    if optimizer.built:
        return
    from keras.src import backend

    with backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True


def patch_keras_3(marker: Any) -> None:
    """Make Keras 3 aware of optimizers of the class `marker`. Does nothing the second time.

    - compile(jit_compile="auto") chooses False for them. XLA cannot compile their reduction.
    - LossScaleOptimizer has its inner optimizer reduce before it looks for infinities. Its inner
      optimizer runs under a condition that differs between ranks before the reduction.
    """
    _patch_trainer(marker)
    _patch_loss_scaling(marker)


@functools.cache
def _patch_trainer(marker: Any) -> None:
    from keras.src.trainers.trainer import Trainer

    original = Trainer._resolve_auto_jit_compile

    @functools.wraps(original)
    def resolve(self: Any) -> bool:
        optimizer = getattr(self, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", None)
        if isinstance(optimizer, marker) or isinstance(inner, marker):
            return False
        return bool(original(self))

    Trainer._resolve_auto_jit_compile = resolve


@functools.cache
def _patch_loss_scaling(marker: Any) -> None:
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer

    original = LossScaleOptimizer.apply

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        if not isinstance(inner, marker):
            original(self, grads, trainable_variables)
            return
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables
        with inner.reduced(grads, variables) as reduced:
            original(self, reduced, trainable_variables)

    LossScaleOptimizer.apply = apply


# --- What callbacks need, of any Keras ---


def variables_of(model: Any, optimizer: Any = None) -> list[Any]:
    """The variables of a model and an optimizer, each once. None: the model's own optimizer."""
    if optimizer is None:
        optimizer = getattr(model, "optimizer", None)
    of_optimizer = getattr(optimizer, "variables", [])
    if callable(of_optimizer):  # of Keras 2
        of_optimizer = of_optimizer()
    return list({variable_key(v): v for v in [*model.variables, *of_optimizer]}.values())


def broadcast_variables_of(model: Any, local: Any, optimizer: Any = None) -> list[Any]:
    """`variables_of`, but for the local ones and states of random numbers."""
    left_out = {variable_key(variable) for variable in local}
    return [
        variable
        for variable in variables_of(model, optimizer)
        if variable_key(variable) not in left_out and not _is_random_state(variable)
    ]


def create_optimizer_variables(optimizer: Any, variables: Any) -> None:
    """Make an optimizer's variables, as its first step does. Nothing if they are there, or None."""
    if hasattr(optimizer, "_create_all_weights"):  # a legacy one of Keras 2
        with tf.init_scope():
            optimizer._create_all_weights(variables)
    elif optimizer is not None:
        build_optimizer(optimizer, variables)


def learning_rate_of(optimizer: Any) -> float:
    """The current learning rate."""
    rate = optimizer.learning_rate
    if callable(rate) and not hasattr(rate, "numpy"):  # a schedule of Keras 2
        rate = rate(optimizer.iterations)
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def set_learning_rate(optimizer: Any, value: float) -> None:
    """Set it.

    Raises:
      ValueError: the optimizer follows a LearningRateSchedule.
    """
    try:
        optimizer.learning_rate = value
    except TypeError as error:  # what Keras says of a schedule
        raise ValueError(
            "the optimizer follows a LearningRateSchedule, so a callback cannot set its learning "
            "rate: give the optimizer a number"
        ) from error


def scale_momentum(optimizer: Any, factor: float) -> None:
    """Multiply the sums of a momentum by a factor.

    For v = m * v - rate * g that is what multiplying m for one step is, which compiled training
    steps would not see.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(inner, "momentum", None):
        return
    for slots in ("momentums", "_momentums"):
        for slot in getattr(inner, slots, None) or ():
            if slot is not None:
                slot.assign(slot * factor)
        if getattr(inner, slots, None):
            return
    if hasattr(inner, "get_slot_names") and "momentum" in inner.get_slot_names():
        for weight in inner.weights:
            if weight.name.split("/")[-1].startswith("momentum"):
                weight.assign(weight * factor)


def _is_random_state(variable: Any) -> bool:
    """Whether it is the state of a generator of random numbers. Of Keras 3."""
    return "seed_generator" in str(getattr(variable, "path", ""))


def replace_optimizer(model: Any, optimizer: Any) -> None:
    """Have a compiled model that has not trained yet train with another optimizer."""
    model.optimizer = optimizer
    if getattr(model, "jit_compile", None):
        model.jit_compile = False


def mend_optimizer_of_h5(model: Any, filepath: Any) -> None:
    """Give a model that Keras 3 has loaded from HDF5 an optimizer that can train it.

    Keras 3 builds the optimizer of such a file for no variables at all, and drops its slots. Does
    nothing to any other model.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    variables = model.trainable_variables
    if hasattr(optimizer, "compute_gradients") or not getattr(optimizer, "built", False):
        return
    if not variables or optimizer._trainable_variables:
        return
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

    fresh = type(optimizer).from_config(optimizer.get_config())
    build_optimizer(fresh, variables)
    with h5py.File(filepath, "r") as file:
        fresh.set_weights(load_optimizer_weights_from_hdf5_group(file))
    model.optimizer = fresh


def value_of(tensor: Any) -> Any:
    """The tensor in eager code. In a graph of TF 1 its value, from Keras' session."""
    if tf.executing_eagerly():
        return tensor
    return v1.keras.backend.get_session().run(tensor)
