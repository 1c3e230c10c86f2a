# SPDX-License-Identifier: Apache-2.0
"""Tells whether ranks have built a dataset from the same arrays and files. Reads no element."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf._internal.compat import dataset_chain
from hvd_tf.data.early_values import early_array

Content = list[Any]
"""Dtype and shape of an array, a digest, and norm and mixture if it has real numbers. JSON."""

_PIECE = 1 << 16  # elements
# Processors differ in the last bits of floating point. By dtype, relative to the norm.
_TOLERANCES = {"float16": 4e-3}
_TOLERANCE = 1e-5


def contents_of(dataset: tf.data.Dataset) -> list[Content]:
    """The arrays and lists of files of `from_tensor_slices`, which the dataset is made from."""
    return [
        _content(tensor)
        for source in dataset_chain(dataset)
        if "TensorSliceDataset" in type(source).__name__
        for tensor in getattr(source, "_tensors", ())
    ]


def _content(tensor: tf.Tensor) -> Content:
    digest, norm, mixture = "", 0.0, 0.0
    value = early_array(tensor)
    if value is not None and value.dtype.kind == "O":
        # Strings may be files, which may be in another folder on each host.
        names = [os.path.basename(text) for text in value.ravel()]
        digest = hashlib.sha256(b"\0".join(names)).hexdigest()[:16]
    elif value is not None and value.dtype.kind in "biu":
        digest = hashlib.sha256(value.tobytes()).hexdigest()[:16]
    elif value is not None and value.dtype.kind == "f":
        norm, mixture = _norm_and_mixture(value.reshape(-1))
    return [tensor.dtype.name, str(tensor.shape), digest, norm, mixture]


def _norm_and_mixture(values: np.ndarray) -> tuple[float, float]:
    """The Euclidean norm, and the sum with pseudo-random weights from -1 to 1.

    Other values, or another order of them, change the mixture by about the norm of the change.
    """
    weights = np.random.RandomState(0)  # the same ones in each version of NumPy
    squares = mixture = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, values.size, _PIECE):
            piece = values[start : start + _PIECE].astype(np.float64)
            piece[~np.isfinite(piece)] = 0
            squares += float(piece @ piece)
            mixture += float(piece @ weights.uniform(-1, 1, piece.size))
    return math.sqrt(squares), mixture if math.isfinite(mixture) else 0.0


def difference_of(everyones: Sequence[Sequence[Content]]) -> str:
    """Where the ranks' contents differ, in words. Empty: nowhere."""
    for rank, theirs in enumerate(everyones):
        for first, other in zip_longest(everyones[0], theirs):
            if not _are_alike(first, other):
                return f"{_shown(first)} on rank 0, {_shown(other)} on rank {rank}"
    return ""


def _are_alike(first: Optional[Content], other: Optional[Content]) -> bool:
    if first is None or other is None or first[:-2] != other[:-2]:
        return False
    (norm, mixture), (other_norm, other_mixture) = first[-2:], other[-2:]
    tolerance = _TOLERANCES.get(first[0], _TOLERANCE)
    return math.isclose(norm, other_norm, rel_tol=tolerance) and math.isclose(
        mixture, other_mixture, rel_tol=0, abs_tol=tolerance * norm
    )


def _shown(content: Optional[Content]) -> str:
    if content is None:
        return "nothing"
    dtype, shape, digest, norm, mixture = content
    values = f"the digest {digest}" if digest else f"norm {norm:.7g}, mixture {mixture:.7g}"
    return f"{dtype} {shape} with {values}"
