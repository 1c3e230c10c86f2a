# SPDX-License-Identifier: Apache-2.0
"""`shard_input_fn`: makes an input_fn for one process give each rank its share."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import v1
from hvd_tf._internal.meeting import everywhere, on_rank_0
from hvd_tf.data.sharding import shard

_WHAT = "input_fn"
_WHOLE = "_hvd_tf_whole_input_fn"

InputFn = Callable[..., tf.data.Dataset]


def shard_input_fn(
    input_fn: InputFn,
    batch_size: Optional[int] = None,
    *,
    shuffle_buffer: Optional[int] = None,
    seed: int = 0,
    epochs: Optional[int] = 1,
    uneven: str = "drop",
    drop_remainder: bool = False,
) -> InputFn:
    """An input_fn for training that gives this rank its share of what `input_fn` gives.

    `input_fn` stays as it was for one process. It returns the same dataset on every rank, and the
    ranks take its elements in turn. If these are batches, a step of n ranks sees the next n batches
    of the one process. A `shuffle` in it has one order on all ranks, with or without a seed. If the
    elements are records, `batch_size` batches each rank's own, and `shuffle_buffer` shuffles them.

    Every rank reads all data that `input_fn` reads. With `hvd.data.shard` on files, called inside
    an input_fn, each rank reads its own part.

    `hvd.estimator.evaluate` and `train_and_evaluate` evaluate the whole dataset, every element
    once, when they are given such an input_fn.

    Args:
      input_fn: returns a tf.data.Dataset, with the parameters that Estimator offers: `params`,
        `config`, `mode`, `input_context`.
      batch_size: records to a batch, where `input_fn` gives records. None: it gives batches.
      shuffle_buffer: records to choose from, as in `hvd.data.shard`. None: no shuffling.
      seed: as in `hvd.data.shard`.
      epochs: passes over the data; None: without end. A dataset that repeats itself needs none.
      uneven: as in `hvd.data.shard`.
      drop_remainder: as in `hvd.data.shard`.

    Returns:
      An input_fn with the same parameters, to be called on every rank. It raises on every rank
      where `input_fn` raises on one (RuntimeError on the others, with that rank's error), where it
      returns no dataset, and where the dataset cannot be shared out (ValueError).

    Raises:
      TypeError: `input_fn` is not callable.
    """
    if not callable(input_fn):
        raise TypeError(f"shard_input_fn: input_fn must be a function. Received: {input_fn!r}")
    share = functools.partial(
        shard,
        batch_size=batch_size,
        shuffle_buffer=shuffle_buffer,
        seed=seed,
        epochs=epochs,
        uneven=uneven,
        drop_remainder=drop_remainder,
    )

    def sharded(*args: Any, **kwargs: Any) -> tf.data.Dataset:
        with _one_seed():
            whole = everywhere(lambda: _dataset(input_fn(*args, **kwargs)), _WHAT)
        return share(whole)

    # Estimator checks which of its parameters the function has, and overlooks keyword-only ones.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in parameters_of(input_fn)]
    sharded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    sharded.__name__ = f"sharded_{getattr(input_fn, '__name__', _WHAT)}"
    setattr(sharded, _WHOLE, input_fn)
    return sharded


def whole_input_fn(input_fn: InputFn) -> InputFn:
    """The input_fn that `shard_input_fn` was given, if it made this function. Else the function."""
    return getattr(input_fn, _WHOLE, input_fn)


def parameters_of(input_fn: InputFn) -> list[str]:
    """The names of the parameters that Estimator sees. What a partial has bound is none."""
    if isinstance(input_fn, functools.partial):
        inner = parameters_of(input_fn.func)[len(input_fn.args) :]
        return [name for name in inner if name not in input_fn.keywords]
    return list(inspect.signature(input_fn).parameters)


def _dataset(result: Any) -> tf.data.Dataset:
    if not isinstance(result, tf.data.Dataset):
        raise ValueError(
            "shard_input_fn needs an input_fn that returns a tf.data.Dataset; this one returned "
            f"{type(result).__name__}. Return the dataset itself, without an iterator"
        )
    return result


@contextmanager
def _one_seed() -> Iterator[None]:
    """In the block, the default graph has rank 0's seed on all ranks.

    `run_config` gives each rank a seed of its own, for dropout. A shuffle before the split must
    have the same seed on all.
    """
    if tf.executing_eagerly():
        yield
        return
    graph = v1.get_default_graph()
    own = graph.seed
    common = on_rank_0(
        lambda: random.SystemRandom().getrandbits(31) if own is None else own, f"{_WHAT}/seed"
    )
    graph.seed = common
    try:
        yield
    finally:
        graph.seed = own
