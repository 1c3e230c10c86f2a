# SPDX-License-Identifier: Apache-2.0
"""Every difference between versions of TensorFlow and Keras, and all use of their private parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Optional

import tensorflow as tf
from tensorflow.python.eager import context as _eager_context
from tensorflow.python.ops import control_flow_util as _control_flow_util
from tensorflow.python.ops import variables as _variables
from tensorflow.python.saved_model import save_context as _save_context

v1 = tf.compat.v1

_MADE_FROM = "_hvd_tf_made_from"

Variable = Any  # tf.Variable, a reference variable of TF 1, or a Keras 3 variable


def executing_eagerly_outside_functions() -> bool:
    """Whether the program runs eagerly. True also while one of its tf.functions is being traced."""
    return bool(v1.executing_eagerly_outside_functions())


def graph_chain() -> Iterator[tf.Graph]:
    """The graph that operations are added to now, then the graphs around it, outermost last.

    In eager execution the last one is TensorFlow's global graph, which stands for the program.
    """
    graph: Optional[tf.Graph] = v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)  # only the graphs of functions have one


def eager_mode() -> AbstractContextManager[Any]:
    """In the block, operations run eagerly in this thread, also while a graph of TF 1 is built."""
    return _eager_context.eager_mode()


def made_from(dataset: tf.data.Dataset, source: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset. `dataset_chain` then knows a source that only its functions use."""
    setattr(dataset, _MADE_FROM, source)
    return dataset


def dataset_chain(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """The dataset and all that it is made from, as far as TensorFlow and `made_from` tell."""
    yield dataset
    for source in dataset_inputs(dataset):
        yield from dataset_chain(source)


def dataset_inputs(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """What the dataset is made from directly, as far as TensorFlow and `made_from` tell."""
    # Each transformation of tf.compat.v1.data is wrapped, and has the inputs of what it wraps. Some
    # readers of files do not count their dataset of names among their inputs.
    hidden = [getattr(dataset, name, None) for name in (_MADE_FROM, "_dataset", "_filenames")]
    found = next((source for source in hidden if isinstance(source, tf.data.Dataset)), None)
    return list(dataset._inputs()) if found is None else [found]


def tf_variable(variable: Variable) -> Any:
    """The TensorFlow variable inside a Keras 3 variable. Any other is returned as it is."""
    value = getattr(variable, "value", None)
    # `value` is a method of TensorFlow's variables, and a property of those of Keras 3.
    return variable if value is None or callable(value) else value


def variable_key(variable: Variable) -> Any:
    """A hashable key that is equal for the same variable only. Keep the variable alive."""
    variable = tf_variable(variable)
    return variable.ref() if hasattr(variable, "ref") else id(variable)


def parts_of(variable: Variable) -> list[Variable]:
    """The variables that a partitioner has made in place of it, or the variable itself."""
    if isinstance(variable, _variables.PartitionedVariable):
        return list(variable)
    return [variable]


def variables_given(given: Any) -> list[Variable]:
    """What an argument has that takes None, a variable, or a sequence of them."""
    if given is None:
        return []
    return [given] if hasattr(given, "assign") else list(given)


def is_resource_variable(variable: Variable) -> bool:
    """False for the reference variables that TF 1 behaviour still makes."""
    return not str(tf_variable(variable).dtype.name).endswith("_ref")


def is_replicated(variable: Variable) -> bool:
    """Whether a strategy of TensorFlow has made it, which may keep several copies of its value."""
    return isinstance(tf_variable(variable), tf.distribute.DistributedValues)


def devices_of(variables: Iterable[Variable]) -> set[str]:
    """Where the values are. Empty: they are not all resource variables of eager code."""
    try:
        handles = [tf_variable(variable).handle for variable in variables]
    except (AttributeError, ValueError):  # a reference variable; one of several replicas
        return set()
    if not all(isinstance(handle, tf.Tensor) for handle in handles):
        return set()
    return {str(device) for device in {handle.device for handle in handles}}


def is_keras_optimizer(candidate: Any) -> bool:
    """Whether it is an optimizer of Keras 2, Keras 3 or tf_keras, without importing any."""
    names = ("Optimizer", "OptimizerV2", "BaseOptimizer", "_BaseOptimizer")
    return any(cls.__name__ in names and is_of_keras(cls) for cls in type(candidate).__mro__)


def is_traced_for_xla() -> bool:
    """Whether operations that are made now will be compiled by XLA."""
    graph = v1.get_default_graph()
    return not tf.executing_eagerly() and bool(_control_flow_util.GraphOrParentsInXlaContext(graph))


def is_saving() -> bool:
    """Whether operations that are made now go into a SavedModel."""
    return bool(_save_context.in_save_context())


def is_keras_layer(candidate: Any) -> bool:
    """Whether it is a layer of Keras 2, Keras 3 or tf_keras, without importing any."""
    return any(cls.__name__ == "Layer" and is_of_keras(cls) for cls in type(candidate).__mro__)


def is_of_keras(cls: type) -> bool:
    """Whether Keras 2, Keras 3 or tf_keras defines this class."""
    module = cls.__module__
    return module.split(".")[0] in ("keras", "tf_keras") or module.startswith(
        "tensorflow.python.keras"
    )


def nondeterministic_dataset(dataset: tf.data.Dataset) -> str:
    """The first dataset that may give its elements in any order, in words. Empty: none."""
    for source in dataset_chain(dataset):
        name = type(source).__name__.strip("_")
        # An argument overrides tf.data.Options.
        if getattr(source, "_deterministic", None) in ("false", False):
            return f"{name} with deterministic=False"
        if "ParallelInterleave" in name and _is_unordered_interleave(source):
            return f"{name} with deterministic=False"
        # Its workers are not equally fast. Of a job with a name each reader gets other elements.
        if "DataService" in name:
            return "a tf.data service"
    return ""


def _is_unordered_interleave(dataset: tf.data.Dataset) -> bool:
    """Whether an interleave has deterministic=False, which its Python object does not keep."""
    variant = dataset._variant_tensor
    if hasattr(variant, "graph"):
        nodes = [variant.op.node_def]
    else:
        try:
            text = tf.raw_ops.DatasetToGraphV2(
                input_dataset=variant, external_state_policy=1
            ).numpy()
        except tf.errors.OpError:  # it has something that cannot be written down
            return False
        nodes = v1.GraphDef.FromString(text).node
    return any(
        node.op.startswith("ParallelInterleave") and node.attr["deterministic"].s == b"false"
        for node in nodes
    )


def add_control_inputs(operation: tf.Operation, before: Iterable[tf.Operation]) -> None:
    """Let an operation of a graph that is not finalized wait for others."""
    operation._add_control_inputs(list(before))


def is_in_control_flow(operation: tf.Operation) -> bool:
    """Whether it stands in a loop or a branch of TF 1. Edges may not lead into these."""
    return operation._get_control_flow_context() is not None


def nodes_of(operation: tf.Operation) -> Iterator[tuple[str, str]]:
    """The type and name of an operation of a graph, then of the nodes of functions it calls."""
    yield operation.type, operation.name
    left = [operation.type]  # a function of TF 1 is the type of what calls it
    for attribute in operation.op_def.attr:
        if attribute.type == "func":
            left.append(operation.get_attr(attribute.name).name)
        elif attribute.type == "list(func)":
            left += [function.name for function in operation.get_attr(attribute.name)]
    found: set[str] = set()
    while left:
        name = left.pop()
        function = operation.graph._get_function(name)
        if name in found or function is None:
            continue
        found.add(name)
        for node in function.cached_definition.node_def:
            yield node.op, node.name
            left.append(node.op)
            for value in node.attr.values():
                left += [called.name for called in (value.func, *value.list.func) if called.name]


def warm_start_of(estimator: Any) -> Any:
    """The WarmStartSettings that an Estimator was given, or None."""
    return getattr(estimator, "_warm_start_settings", None)


def save_checkpoint(hook: Any, session: Any, step: int) -> bool:
    """Have a CheckpointSaverHook save now.

    Returns whether one of its listeners asks to end the training.
    """
    hook._timer.update_last_triggered_step(step)  # else it would save this step again at the end
    return bool(hook._save(session, step))
