# SPDX-License-Identifier: Apache-2.0
"""tf.estimator on every TensorFlow. Up to 2.15 it is TensorFlow's, later tensorflow-estimator's.

On TensorFlow 2.16 and later it is best effort. The last release of tensorflow-estimator, 2.15.0,
imports private modules of TensorFlow that no longer exist. This file replaces what it needs of
them. tf.distribute inside Estimators and TPUs are left out. Any release of TensorFlow may break
more.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import tensorflow as tf

_PIP = "pip install --no-deps tensorflow-estimator==2.15.0"
_PACKAGE = "tensorflow_estimator"
_GONE = "tensorflow.python.distribute.estimator_training"


class _Missing(ModuleType):
    """Stands for tf.estimator where it is not available. Its use raises an error that says so."""

    def __init__(self, reason: str, cause: Exception | None = None) -> None:
        super().__init__("tf_estimator", reason)
        self._reason = reason
        self._cause = cause

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself asks, for example inspect and copy
            raise AttributeError(name)
        raise ImportError(f"{self._reason} (asked for: {name})") from self._cause


class RefusesTrainAndEvaluate(str):
    """Makes tf.estimator.train_and_evaluate fail, as RunConfig's `_distribute_coordinator_mode`.

    It is an empty string, which `Estimator` takes for "no coordinator". Only tf.estimator's
    train_and_evaluate looks at its text, and does so before it starts anything.
    """

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError(
            "tf.estimator.train_and_evaluate decides on each rank by its own clock and files when "
            "to evaluate, so ranks would wait for each other for ever: call "
            "hvd_tf.estimator.train_and_evaluate with the same arguments"
        )


def _load() -> tuple[ModuleType, ModuleType]:
    """The modules that TensorFlow 2.15 calls tf.estimator and tf.compat.v1.estimator."""
    if hasattr(tf, "estimator"):
        return tf.estimator, getattr(tf.compat.v1, "estimator", tf.estimator)
    spec = importlib.util.find_spec(_PACKAGE) if _PACKAGE not in sys.modules else None
    if _PACKAGE not in sys.modules and spec is None:
        reason = f"TensorFlow {tf.__version__} has no tf.estimator: {_PIP}"
        return _Missing(reason), _Missing(reason)
    try:
        _replace_what_is_gone()
        if spec is not None:
            _skip_package_init(spec)
        return _public_names("v2"), _public_names("v1")
    except Exception as error:  # a private module of TensorFlow may raise anything
        reason = (
            f"tensorflow-estimator does not work with TensorFlow {tf.__version__} (best effort, "
            f"known to work with 2.15.0 of it on TensorFlow 2.16 to 2.21): {error!r}; install "
            f"that version, {_PIP}, or use tf.compat.v1.train.MonitoredTrainingSession"
        )
        return _Missing(reason, error), _Missing(reason, error)


def _replace_what_is_gone() -> None:
    """Restore a name of tf_export and a module, which tensorflow-estimator uses."""
    tf_export = importlib.import_module("tensorflow.python.util.tf_export")
    if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
        vars(tf_export)["ESTIMATOR_API_NAME"] = "estimator"
        attributes = type(tf_export.API_ATTRS[tf_export.TENSORFLOW_API_NAME])
        for table, version in ((tf_export.API_ATTRS, ""), (tf_export.API_ATTRS_V1, "_v1")):
            table["estimator"] = attributes(
                f"_estimator_api_names{version}", f"_estimator_api_constants{version}"
            )
    module = ModuleType(_GONE, "In place of what runs Estimators under tf.distribute.")
    names = vars(module)
    names["should_run_distribute_coordinator"] = _should_run_distribute_coordinator
    for name in ("init_run_config", "train_and_evaluate", "estimator_train", "estimator_evaluate"):
        names[name] = _no_tf_distribute
    sys.modules[_GONE] = module
    vars(importlib.import_module("tensorflow.python.distribute"))["estimator_training"] = module


def _should_run_distribute_coordinator(config: Any) -> bool:
    mode = getattr(config, "_distribute_coordinator_mode", None)
    return mode is not None and mode == "independent_worker"


def _no_tf_distribute(*args: Any, **kwargs: Any) -> None:
    raise NotImplementedError(
        f"tf.distribute inside Estimators ended with TensorFlow 2.15; this is {tf.__version__}. "
        "hvd_tf distributes Estimators: pass a config of hvd_tf.estimator.run_config(...)"
    )


def _skip_package_init(spec: Any) -> None:
    """Let the package's modules be imported without its __init__, which needs TPUs."""
    package = ModuleType(_PACKAGE, "tensorflow-estimator without TPUs; see hvd_tf.estimator.")
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[_PACKAGE] = package


def _public_names(version: str) -> ModuleType:
    """A module of those public names of API v1 or v2 that can be imported."""
    found = f"{_PACKAGE}._api.{version}"
    if version == "v1":  # its list of names begins with those for TPUs
        for name in ("tpu", "tpu.experimental"):
            full = f"{found}.estimator.{name}"
            sys.modules[full] = ModuleType(full, "Not there: TPUs are not supported.")
    return importlib.import_module(f"{found}.estimator")


def provide_tf_estimator() -> None:
    """Make `tf.estimator` and `tf.compat.v1.estimator` work in code that is not yours to change.

    Does nothing on TensorFlow up to 2.15. On later versions it sets these two attributes of the
    tensorflow modules, for the whole process. It is best effort; see `tf_estimator`.

    Raises:
      ImportError: tensorflow-estimator is not installed, or does not work here.
    """
    if hasattr(tf, "estimator"):
        return
    _ = tf_estimator.Estimator  # raises where it is missing
    tf.estimator = tf_estimator
    tf.compat.v1.estimator = tf_estimator_v1


tf_estimator, tf_estimator_v1 = _load()
