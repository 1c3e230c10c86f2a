# SPDX-License-Identifier: Apache-2.0
"""Finds the files of a source, and checks that they can be read here."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from typing import Union

import tensorflow as tf

Patterns = Union[str, os.PathLike, Sequence[Union[str, os.PathLike]]]

_WILD = frozenset("*?[{")


def paths_of(source: Patterns) -> list[str]:
    """The paths of a name, a glob pattern or a list of these, in the order that they are given.

    A list's repetitions stay. What one pattern matches is sorted, and so is a set.

    Raises:
      ValueError: nothing is given, or a pattern matches no file.
    """
    try:
        given = [source] if isinstance(source, (str, os.PathLike)) else list(source)
        patterns = [os.fspath(pattern) for pattern in given]
        if isinstance(source, Set):  # whose order changes from run to run
            patterns = sorted(patterns)
    except TypeError:
        raise ValueError(
            f"source is a {type(source).__name__}: pass file names, patterns or a tf.data.Dataset "
            "(tf.data.Dataset.from_tensor_slices makes one of arrays)"
        ) from None
    if not patterns:
        raise ValueError("source=[]: name at least one file, or a pattern such as 'train-*'")
    paths: list[str] = []
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ValueError(f"source has {pattern!r}: pass file names, patterns or a Dataset")
        # A file may be called "b[1].csv".
        is_pattern = _WILD & set(pattern) and not tf.io.gfile.exists(pattern)
        matches = tf.io.gfile.glob(pattern) if is_pattern else [pattern]
        if not matches:
            raise ValueError(f"no file matches {pattern!r} (looked from {os.getcwd()})")
        paths += sorted(matches)
    return paths


def sizes_of(paths: Sequence[str]) -> list[int]:
    """The size of each file in bytes. Checks that it can be read here.

    Raises:
      ValueError: a file is missing or cannot be read. It names the file.
    """
    return [_size_of(path) for path in paths]


def is_compressed(path: str) -> bool:
    """Whether the file begins like a gzip file."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return bool(file.read(2) == b"\x1f\x8b")


def _size_of(path: str) -> int:
    if tf.io.gfile.isdir(path):
        raise ValueError(f"{path} is a directory: name files, or a pattern such as '{path}/*'")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            file.read(1)
            return int(file.size())
    except tf.errors.NotFoundError:
        raise ValueError(f"{path} does not exist") from None
    except tf.errors.OpError as error:
        raise ValueError(f"{path} cannot be read: {error.message}") from None
