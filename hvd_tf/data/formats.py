# SPDX-License-Identifier: Apache-2.0
"""`Format`, the interface of file formats, and the choice of one by a file's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import tensorflow as tf

Columns = Union[None, Sequence[str], Mapping[str, Any]]

_EXTENSIONS = {
    "tfrecord": re.compile(r"\.(tfrecords?|tfrec)\b", re.IGNORECASE),
    "csv": re.compile(r"\.csv$", re.IGNORECASE),
    "parquet": re.compile(r"\.(parquet|pq)$", re.IGNORECASE),
}


# Bytes of records that are read at a time: the work for so many is not felt, nor is their memory.
_CHUNK_BYTES = 4 << 20


def records_at_a_time(record_bytes: float, most: int) -> int:
    """How many records of this size to read at a time: one to `most`."""
    return max(1, min(most, int(_CHUNK_BYTES / max(record_bytes, 1.0))))


@dataclass(frozen=True)
class Format:
    """How files of one format are read."""

    count: Callable[[str], Optional[int]]
    """The number of records in a file. None if the whole file must be read for it."""
    read: Callable[[tf.Tensor], tf.data.Dataset]
    """The records of one file, in order. Called in dataset functions with a string scalar."""


def format_name(paths: Sequence[str], asked: Optional[str]) -> str:
    """The format that was asked for, or that the names of all files have in common.

    Raises:
      ValueError: an unknown format, or names that stand for no format or several.
    """
    if asked is not None:
        if asked not in _EXTENSIONS:
            raise ValueError(f"format={asked!r}: pass one of {', '.join(map(repr, _EXTENSIONS))}")
        return asked
    found = {_format_of(path): path for path in paths}
    if len(found) == 1 and None not in found:
        (name,) = found
        return str(name)
    raise ValueError(
        f"the names of the files do not tell one format ({', '.join(sorted(found.values()))}): "
        f"pass format=, one of {', '.join(map(repr, _EXTENSIONS))}"
    )


def _format_of(path: str) -> Optional[str]:
    file = path.replace("\\", "/").rpartition("/")[2]
    return next((name for name, pattern in _EXTENSIONS.items() if pattern.search(file)), None)


def records_from_arrays(
    chunks: Callable[[bytes], Any], spec: Mapping[str, tf.DType], path: tf.Tensor
) -> tf.data.Dataset:
    """Records, which are dicts of scalars, of a generator of dicts of equally long arrays.

    An error of the generator ends the iteration with its text.
    """
    signature = {name: tf.TensorSpec([None], dtype) for name, dtype in spec.items()}
    arrays = tf.data.Dataset.from_generator(chunks, args=(path,), output_signature=signature)
    return arrays.unbatch()
