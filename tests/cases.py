# SPDX-License-Identifier: Apache-2.0
"""Which cases of a test run: what they need, and how many were asked for.

By default a combination runs that proves something of its own. HVD_TEST_ALL=1 runs the others too,
and so does HVD_TEST_FAULT_REPEATS, which is for long runs of the faults. HVD_TEST_ONE_SIZE=1 is for
what depends on TensorFlow's version and not on the number of ranks: see multirank.py.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

import fake_gpu
import pytest

_ALL = ("HVD_TEST_ALL", "HVD_TEST_FAULT_REPEATS")
_ONE_SIZE = "HVD_TEST_ONE_SIZE"
# What was asked for, for ranks too: a job's environment has nothing else of the tests' own.
VARIABLES = {name: os.environ[name] for name in (*_ALL, _ONE_SIZE) if name in os.environ}
ALL = not VARIABLES.keys().isdisjoint(_ALL)
ONE_SIZE = _ONE_SIZE in VARIABLES
in_full = pytest.mark.skipif(not ALL, reason="others prove as much; HVD_TEST_ALL=1 runs it")


def has_estimator() -> bool:
    """Whether tf.estimator can be had: of TensorFlow 2.15, or by the package for later ones."""
    try:
        return bool(version("tensorflow-estimator"))
    except PackageNotFoundError:
        return False


# TensorFlow's builds for CPUs have no kernels of their own for GPUs.
needs_kernels = pytest.mark.skipif(
    fake_gpu.GPU_VARIABLE in os.environ and not fake_gpu.IS_REAL,
    reason="TensorFlow has no kernel for a GPU here",
)
needs_estimator = pytest.mark.skipif(not has_estimator(), reason="no tensorflow-estimator here")


def is_before_keras_2_15() -> bool:
    """Whether .keras files are new to this Keras: it fails to write and to read some."""
    try:
        return tuple(int(part) for part in version("keras").split(".")[:2]) < (2, 15)
    except PackageNotFoundError:
        return False


# What ModelCheckpoint(save_best_only=True) can write.
BEST_MODEL = ".h5" if is_before_keras_2_15() else ".keras"
reads_legacy = pytest.mark.skipif(
    is_before_keras_2_15(), reason="this Keras cannot read a .keras file with a legacy optimizer"
)
