# SPDX-License-Identifier: Apache-2.0
"""Runs one function in each of TensorFlow's ways, on NumPy arrays. Makes every rank's arrays.

Each rank can make all ranks' arrays, so a test computes what it expects without a collective.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import fake_gpu
import numpy as np
import tensorflow as tf

import hvd_tf as hvd

v1 = tf.compat.v1

MODES = ("eager", "function", "session")

# Where `run` places what can be there. "": TensorFlow chooses.
DEVICE = "GPU:0" if fake_gpu.GPU_VARIABLE in os.environ else ""

REDUCIBLE = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
ALL_DTYPES = (*REDUCIBLE, "uint16", "int16", "bool")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def run(mode: str, fn: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """Calls `fn` with the arrays as tensors, in one of MODES. Returns its tensors as arrays."""
    with tf.device(DEVICE):
        if mode == "eager":
            return _arrays(fn(*map(tf.constant, arrays)))
        if mode == "function":
            return _arrays(tf.function(fn, autograph=False)(*map(tf.constant, arrays)))
    config = v1.ConfigProto(allow_soft_placement=True)
    with tf.Graph().as_default(), v1.Session(config=config) as session, tf.device(DEVICE):
        fed = [v1.placeholder(array.dtype, array.shape) for array in arrays]
        results = fn(*fed)
        session.run(v1.global_variables_initializer())
        return session.run(_parts(results), dict(zip(fed, arrays)))


def late(x: tf.Tensor, seconds: float) -> tf.Tensor:
    """The tensor, after a time: what one rank has at once, another has to wait for.

    Several wait at a time.
    """

    def wait(value: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return value

    waited = tf.numpy_function(wait, [x], x.dtype, stateful=False)
    waited.set_shape(x.shape)
    return waited


def _arrays(results: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), _parts(results))


def _parts(results: Any) -> Any:
    """Slices as a tuple of values, indices and dense_shape."""
    if isinstance(results, (list, tuple)):
        return type(results)(_parts(result) for result in results)
    if isinstance(results, tf.IndexedSlices):
        return results.values, results.indices, results.dense_shape
    return results


def np_dtype(dtype: str) -> Any:
    return tf.as_dtype(dtype).as_numpy_dtype


def values(dtype: str, shape: tuple[int, ...], rank: int, seed: int = 0) -> np.ndarray:
    """Small numbers, so that sums and products of four ranks fit into every dtype."""
    rng = np.random.default_rng([seed, rank])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return rng.uniform(-2, 2, shape).astype(np_dtype(dtype))
    low = 0 if dtype.startswith("u") else -3
    return rng.integers(low, 4, shape).astype(dtype)


def reduced(op: int, parts: list[np.ndarray]) -> np.ndarray:
    """The exact result of the op, rounded as each dtype is: not at all in float64."""
    wide = [np.asarray(part, np.float64) for part in parts]
    if op == hvd.Average:
        mean = np.sum(wide, axis=0) / len(parts)
        return np.trunc(mean) if parts[0].dtype.kind in "iu" else mean
    if op == hvd.Sum:
        return np.sum(wide, axis=0)
    return {hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod}[op](wide, axis=0)


def sum_in_order(parts: list[np.ndarray]) -> np.ndarray:
    """The ranks' parts, added up in the order that `allreduce` promises.

    That is rank by rank on each host, then host by host. Here hosts have equally many ranks that
    follow one another.
    """
    a_host = hvd.local_size()
    hosts = [parts[first : first + a_host] for first in range(0, len(parts), a_host)]
    return functools.reduce(np.add, [functools.reduce(np.add, host) for host in hosts])


def tolerance(dtype: str, terms: int) -> float:
    """Relative to the largest operand: the rounding of one result and of a float32 sum."""
    if dtype not in FLOATS:
        return 0.0
    eps = float(tf.experimental.numpy.finfo(np_dtype(dtype)).eps) if dtype != "bfloat16" else 2**-7
    return terms * eps


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: str, terms: int = 2) -> None:
    """`expected` is in float64 (or of an integer dtype, and then equal)."""
    assert actual.dtype == np_dtype(dtype)
    assert actual.shape == expected.shape
    if dtype not in FLOATS:
        np.testing.assert_array_equal(actual.astype(np.float64), expected.astype(np.float64))
        return
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    difference = np.abs(actual.astype(np.float64) - expected)
    assert float(np.max(difference, initial=0.0)) <= tolerance(dtype, terms) * scale
