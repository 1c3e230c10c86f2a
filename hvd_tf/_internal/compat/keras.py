# SPDX-License-Identifier: Apache-2.0
"""What is private in Keras: its modules, its trainer's use of XLA, and what callbacks need."""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import tf_variable, v1, variable_key
from hvd_tf._internal.compat.keras_optimizers import optimizers_of


def backend_of_keras_3() -> str:
    """The backend of Keras 3, which has been imported, such as "tensorflow"."""
    return str(sys.modules["keras"].backend.backend())


def trainer_of_keras_3(method: str) -> Any:
    """The class with this method of a Keras 3 model, or None. Its name is Keras' own, and changes.

    Keras has been imported.
    """
    classes = sys.modules["keras"].Model.__mro__
    return next((cls for cls in classes if method in vars(cls)), None)


def build_optimizer(optimizer: Any, variables: Any) -> None:
    """Make the variables of an optimizer as its own `apply` does. Nothing if they are there.

    Legacy optimizers of Keras 2 make theirs by themselves, wherever they are called.
    """
    if hasattr(optimizer, "_compute_gradients"):  # a legacy one
        return
    if hasattr(optimizer, "compute_gradients"):  # Keras 2
        # One for loss scaling has no name: it builds the optimizer within in no scope.
        scope = getattr(optimizer, "name", None)
        with tf.name_scope(scope) if scope else nullcontext(), tf.init_scope():
            optimizer.build(variables)
        return
    if optimizer.built:
        return
    from keras.src import backend

    with backend.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True


def keras_2_module(optimizer_class: Any, name: str) -> Any:
    """A module of Keras 2 or tf_keras, whichever an optimizer's class is of, such as "backend"."""
    # A program's own class is of Keras too, by its base.
    packages = [cls.__module__.partition(".")[0] for cls in optimizer_class.__mro__]
    package = next((name for name in packages if name in ("keras", "tf_keras")), "")
    return sys.modules.get(f"{package}.src.{name}")


def keep_registered_name(derived: Any, base: Any) -> None:
    """Have Keras save objects of a class by the name that a program has registered its base by."""
    if hasattr(base, "compute_gradients") or hasattr(base, "_compute_gradients"):  # Keras 2
        module = keras_2_module(base, "saving.object_registration")
        names = getattr(module, "_GLOBAL_CUSTOM_NAMES", {})
    else:
        from keras.src.saving import object_registration

        names = object_registration.GLOBAL_CUSTOM_NAMES
    if base in names:
        names[derived] = names[base]


@functools.cache
def patch_trainer(marker: Any) -> None:
    """Have compile(jit_compile="auto") of Keras 3 choose False for optimizers of a class.

    XLA cannot compile their reduction. Does nothing the second time, or where Keras chooses in
    another place: then the reduction says what to do.
    """
    trainer = trainer_of_keras_3("_resolve_auto_jit_compile")
    if trainer is None:
        return
    original = trainer._resolve_auto_jit_compile

    @functools.wraps(original)
    def resolve(self: Any) -> bool:
        optimizer = getattr(self, "optimizer", None)
        inner = getattr(optimizer, "inner_optimizer", None)
        if isinstance(optimizer, marker) or isinstance(inner, marker):
            return False
        return bool(original(self))

    trainer._resolve_auto_jit_compile = resolve


# --- What callbacks need, of any Keras ---


def variables_of(model: Any, optimizer: Any = None) -> list[Any]:
    """The variables of a model and an optimizer, each once. None: all optimizers of the model.

    Keras 2 lists vocabularies of preprocessing layers among them, which are no variables.
    """
    every = [*model.variables]
    for one in optimizers_of(model) if optimizer is None else [optimizer]:
        of_optimizer = getattr(one, "variables", [])
        every += of_optimizer() if callable(of_optimizer) else of_optimizer  # a method in Keras 2
        every += [*_settings_of(one), *_loss_scale_variables(one)]
    return list({variable_key(v): v for v in every if hasattr(v, "dtype")}.values())


# A class derived by a program may have variables of its own, for each rank another.
_SETTINGS = ("_learning_rate", "_current_learning_rate", "_iterations", "_u_product")


def _settings_of(optimizer: Any) -> list[Any]:
    """An optimizer's settings that are variables, such as the learning rate.

    Keras 2 leaves them out of the optimizer's variables, because its checkpoints hold them by
    their attributes.
    """
    found = []
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        settings = getattr(one, "__dict__", {})
        hypers = settings.get("_hyper", {})  # of a legacy one
        found += [settings.get(name) for name in _SETTINGS]
        found += [hypers[name] for name in sorted(hypers)]
    return [value for value in found if isinstance(value, tf.Variable)]


def _loss_scale_variables(optimizer: Any) -> list[Any]:
    """The loss scale and its counter. Keras 2 leaves them out of the optimizer's variables."""
    state = getattr(optimizer, "_loss_scale", None)
    found = [getattr(state, name, None) for name in ("current_loss_scale", "counter")]
    return [variable for variable in found if variable is not None]


def broadcast_variables_of(model: Any, local: Any, optimizer: Any = None) -> list[Any]:
    """`variables_of`, but for the local ones, states of random numbers, and those of metrics.

    Metrics of a model's own are among its variables in Keras 2. They are of this rank's batches.
    """
    of_metrics = [one for metric in getattr(model, "metrics", ()) for one in metric.variables]
    left_out = {variable_key(variable) for variable in [*local, *of_metrics]}
    return [
        variable
        for variable in variables_of(model, optimizer)
        if variable_key(variable) not in left_out and not _is_random_state(variable)
    ]


def create_optimizer_variables(optimizer: Any, variables: Any) -> None:
    """Make an optimizer's variables, as its first step does. Nothing if they are there, or None.

    It will take gradients of these variables only. So not while all are frozen: other ones would be
    trained later.
    """
    if not variables:
        return
    if isinstance(optimizer, v1.train.Optimizer):
        inner: Any = optimizer
        while hasattr(inner, "_optimizer"):  # a distributed one, or one for loss scaling
            inner = inner._optimizer
        with tf.init_scope():
            inner._create_slots([tf_variable(variable) for variable in variables])
    elif hasattr(optimizer, "_create_all_weights"):  # a legacy one of Keras 2
        with tf.init_scope():
            optimizer._create_all_weights(variables)
    elif optimizer is not None:
        build_optimizer(optimizer, variables)


def reset_passes(optimizer: Any) -> None:
    """Have a distributed optimizer begin with the first of several passes. Every rank does.

    Ranks may have come to different ones, and what they have added up is no part of a state. Does
    nothing to any other optimizer.
    """
    for one in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        reset = getattr(one, "_hvd_reset_passes", None)
        if reset is not None:
            reset()


def trainable_variables_of(model: Any) -> list[Any]:
    """Those that there are: a model may not be built yet."""
    try:
        return list(model.trainable_variables)
    except ValueError:  # a Sequential of Keras 2
        return []


def learning_rate_of(optimizer: Any) -> float:
    """The current learning rate."""
    rate = optimizer.learning_rate
    return _number_of(rate(optimizer.iterations) if _is_schedule(rate) else rate)


def _is_schedule(rate: Any) -> bool:
    """Whether it is a LearningRateSchedule. Newer optimizers show its current value instead."""
    return callable(rate) and not hasattr(rate, "numpy")


def _number_of(value: Any) -> float:
    """A number, or the value of a tensor or variable, which is in Keras' session in a graph."""
    if tf.executing_eagerly():
        return float(value.numpy() if hasattr(value, "numpy") else value)
    return float(value_of(value) if tf.is_tensor(value) else value)


def set_learning_rate(optimizer: Any, value: float) -> None:
    """Set it.

    Raises:
      ValueError: the optimizer follows a LearningRateSchedule.
    """
    refused = ValueError(
        "the optimizer follows a LearningRateSchedule, so a callback cannot set its learning "
        "rate: give the optimizer a number"
    )
    if _is_schedule(optimizer.learning_rate):
        raise refused  # a legacy optimizer would take the number, and a traced step would not
    try:
        optimizer.learning_rate = value
    except TypeError as error:  # what Keras says of a schedule
        raise refused from error


def scale_momentum(optimizer: Any, factor: float) -> None:
    """Multiply the sums of a momentum by a factor.

    For v = m * v - rate * g that is what multiplying m for one step is, which compiled training
    steps would not see.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    momentum = getattr(inner, "momentum", None)
    if momentum is None or not _number_of(momentum):
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
                _multiply(weight, factor)


def _multiply(variable: Any, factor: float) -> None:
    if tf.executing_eagerly():
        variable.assign(variable * factor)
    else:  # Keras makes one operation for all calls
        v1.keras.backend.set_value(variable, value_of(variable) * factor)


def _is_random_state(variable: Any) -> bool:
    """Whether it is the state of a generator of random numbers. Of Keras 3."""
    return "seed_generator" in str(getattr(variable, "path", ""))


def replace_optimizer(model: Any, optimizer: Any) -> None:
    """Have a compiled model that has not trained yet train with another optimizer."""
    model.optimizer = optimizer
    if getattr(model, "jit_compile", None):
        model.jit_compile = False


def mend_optimizer_of_h5(model: Any, filepath: Any) -> None:
    """Let the optimizer of a model that Keras 3 has loaded from HDF5 train it, with its slots.

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

    optimizer.built = False
    build_optimizer(optimizer, variables)
    with h5py.File(filepath, "r") as file:
        optimizer.set_weights(load_optimizer_weights_from_hdf5_group(file))


def get_session() -> v1.Session:
    """Keras' session of the current graph of TF 1. Keras' variables are initialised in it."""
    return v1.keras.backend.get_session()


def run_in_session(operation: Optional[tf.Operation]) -> None:
    """Run an operation of a graph of TF 1 in Keras' session. None: eager code has done it."""
    if operation is not None:
        get_session().run(operation)


def value_of(tensor: Any) -> Any:
    """The tensor in eager code. In a graph of TF 1 its value, from Keras' session."""
    if tf.executing_eagerly():
        return tensor
    return get_session().run(tensor)
