# SPDX-License-Identifier: Apache-2.0
"""Small functions of Horovod that programs borrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

__all__ = [
    "check_extension",
    "check_num_rank_power_of_2",
    "extension_available",
    "gpu_available",
    "split_list",
]

_T = TypeVar("_T")


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing: where hvd_tf can be imported, its native library is there."""


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether it is a framework that hvd_tf knows: "tensorflow" or "keras"."""
    return ext_base_name in ("tensorflow", "keras")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU. Every build of hvd_tf can reduce its tensors.

    Args:
      ext_base_name: "tensorflow" or "keras". For any other framework there is none.
      verbose: not used.
    """
    if not extension_available(ext_base_name):
        return False
    return bool(tf.config.list_physical_devices("GPU"))


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether it is 1, 2, 4, 8, ... Adasum of hvd_tf does not need it."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(values: Sequence[_T], parts: int) -> list[list[_T]]:
    """Consecutive lists of nearly equal length, the longer ones first."""
    size, longer = divmod(len(values), parts)
    begins = [i * size + min(i, longer) for i in range(parts + 1)]
    return [list(values[begin:end]) for begin, end in zip(begins, begins[1:])]
