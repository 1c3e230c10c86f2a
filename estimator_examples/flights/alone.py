# SPDX-License-Identifier: Apache-2.0
"""Stands in for hvd_tf in train.py --plain: the same program as one process without the library."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Optional, Union

import tensorflow as tf
from estimators import tf_estimator


def init() -> None:
    """Nothing to start."""


def rank() -> int:
    """The only rank."""
    return 0


def size() -> int:
    """One process."""
    return 1


def local_rank() -> int:
    """The only rank of its host."""
    return 0


def local_size() -> int:
    """One process on this host."""
    return 1


def DistributedOptimizer(  # noqa: N802 (the name of hvd_tf)
    optimizer: tf.compat.v1.train.Optimizer,
) -> tf.compat.v1.train.Optimizer:
    """The optimizer itself."""
    return optimizer


def BroadcastGlobalVariablesHook(  # noqa: N802 (the name of hvd_tf)
    root_rank: int,
) -> tf.compat.v1.train.SessionRunHook:
    """A hook that does nothing."""
    del root_rank
    return tf.compat.v1.train.SessionRunHook()


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    """The object itself."""
    del root_rank
    return obj


def allgather_object(obj: Any) -> list[Any]:
    """The one object."""
    return [obj]


def _shard(
    source: Union[tf.data.Dataset, Sequence[str]],
    *,
    shuffle_buffer: Optional[int] = None,
    seed: int = 0,
    epochs: Optional[int] = 1,
    first_epoch: int = 0,
) -> tf.data.Dataset:
    """All records."""
    whole = isinstance(source, tf.data.Dataset)
    records = source if whole else tf.data.TFRecordDataset(source)
    if shuffle_buffer is not None:
        records = records.shuffle(shuffle_buffer, seed + first_epoch)
    return records.repeat(epochs)


data = SimpleNamespace(shard=_shard)
estimator = SimpleNamespace(
    run_config=tf_estimator.RunConfig,
    scale_steps=lambda steps: steps,
    scale_learning_rate=lambda rate: rate,
    train_and_evaluate=tf_estimator.train_and_evaluate,
    evaluate=tf_estimator.Estimator.evaluate,
)
