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
"""Dtype and shape of an array, a digest, and the sum of its magnitudes. JSON."""


def contents_of(dataset: tf.data.Dataset) -> list[Content]:
    """The arrays and lists of files of `from_tensor_slices`, which the dataset is made from."""
    return [
        _content(tensor)
        for source in dataset_chain(dataset)
        if "TensorSliceDataset" in type(source).__name__
        for tensor in getattr(source, "_tensors", ())
    ]


def _content(tensor: tf.Tensor) -> Content:
    digest, magnitude = "", 0.0
    value = early_array(tensor)
    if value is not None and value.dtype.kind == "O":
        # Strings may be files, which may be in another folder on each host.
        names = [os.path.basename(text) for text in value.ravel()]
        digest = hashlib.sha256(b"\0".join(names)).hexdigest()[:16]
    elif value is not None and value.dtype.kind in "biu":
        digest = hashlib.sha256(value.tobytes()).hexdigest()[:16]
    elif value is not None and value.dtype.kind == "f":
        magnitude = float(np.sum(np.abs(value), where=np.isfinite(value), dtype=np.float64))
    return [tensor.dtype.name, str(tensor.shape), digest, magnitude]


def difference_of(everyones: Sequence[Sequence[Content]]) -> str:
    """Where the ranks' contents differ, in words. Empty: nowhere."""
    for rank, theirs in enumerate(everyones):
        for first, other in zip_longest(everyones[0], theirs):
            if not _are_alike(first, other):
                return f"{_shown(first)} on rank 0, {_shown(other)} on rank {rank}"
    return ""


def _are_alike(first: Optional[Content], other: Optional[Content]) -> bool:
    if first is None or other is None or first[:-1] != other[:-1]:
        return False
    # Processors differ in the last bits of floating point.
    return math.isclose(first[-1], other[-1], rel_tol=1e-5)


def _shown(content: Optional[Content]) -> str:
    if content is None:
        return "nothing"
    dtype, shape, digest, magnitude = content
    return f"{dtype} {shape} with {f'the digest {digest}' if digest else f'a sum of {magnitude}'}"
