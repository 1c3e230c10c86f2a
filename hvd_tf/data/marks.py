# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a dataset is sharded already, and how it was shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.compat import dataset_chain, dataset_inputs, nondeterministic_dataset
from hvd_tf.data.early_values import early_value

# By what the classes of tf.data are called.
_RANDOM = {
    "ShuffleDataset": "a shuffle",
    "ShuffleAndRepeatDataset": "a shuffle_and_repeat",
    "RandomDataset": "random numbers, such as those of sample_from_datasets,",
}
# What may make of as many elements more on one rank than on another.
_CHANGES_LENGTH = {
    "FilterDataset": "a filter",
    "FlatMapDataset": "a flat_map",
    "InterleaveDataset": "an interleave",
    "UnbatchDataset": "an unbatch",
    "TakeWhileDataset": "a take_while",
    "GroupByWindowDataset": "a group_by_window",
    "IgnoreErrorsDataset": "an ignore_errors",
    "UniqueDataset": "a unique",
}
_OF_SHARD = ("num_shards", "index")
_SHARE = "_hvd_tf_share"
_INEXACT = "_hvd_tf_inexact"
_AGREED = "_hvd_tf_agreed"


def mark_share(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset, known from now on as a rank's share."""
    setattr(dataset, _SHARE, True)
    return dataset


def mark_inexact(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset. Records may be dropped or repeated to make the ranks' steps equal."""
    setattr(dataset, _INEXACT, True)
    return dataset


def mark_agreed(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset. The ranks agree on each of its elements, one ahead."""
    setattr(dataset, _AGREED, True)
    return dataset


def check_agreements(dataset: tf.data.Dataset, uneven: str) -> None:
    """Raises ValueError if two agreements, of the dataset and of `equal_steps`, would block.

    A rank that needs more elements of the inner one for the next of the outer one waits for the
    others there. They wait for that rank in the outer one.
    """
    repeats = 'uneven="repeat"' if uneven == "repeat" else ""
    if step := _step_after_agreement(dataset, repeats):
        raise ValueError(
            f"equal_steps: this dataset has {step} after hvd.data.shard or equal_steps, whose "
            "lengths are unknown. So the ranks agree on each step there, and would wait for each "
            'other where one needs more of these steps than another. Pass uneven="keep" there: '
            "this equal_steps makes the ranks' steps equal"
        )


def _step_after_agreement(dataset: tf.data.Dataset, step: str) -> str:
    """`step`, or what else changes lengths, where an agreement comes before it. Else empty."""
    if hasattr(dataset, _AGREED):
        return step
    kind = type(dataset).__name__
    step = step or next((words for name, words in _CHANGES_LENGTH.items() if name in kind), "")
    found = (_step_after_agreement(source, step) for source in dataset_inputs(dataset))
    return next(filter(None, found), "")


def is_exact(dataset: tf.data.Dataset) -> bool:
    """False for what `hvd.data` has made by dropping or repeating records."""
    return not any(hasattr(source, _INEXACT) for source in dataset_chain(dataset))


def parts_of(dataset: tf.data.Dataset) -> list[Optional[tuple[int, int]]]:
    """`num_shards` and `index` of each Dataset.shard in the dataset. None: not known yet."""
    parts: list[Optional[tuple[int, int]]] = []
    for source in dataset_chain(dataset):
        if "ShardDataset" not in type(source).__name__:
            continue
        numbers = [tf.get_static_value(getattr(source, f"_{name}", None)) for name in _OF_SHARD]
        count, index = (None if number is None else int(number) for number in numbers)
        if count != 1:
            parts.append(None if count is None or index is None else (count, index))
    return parts


def is_share(dataset: tf.data.Dataset) -> bool:
    """Whether `hvd.data` has made the dataset, or one that it is made from, a rank's share."""
    return any(hasattr(source, _SHARE) for source in dataset_chain(dataset))


def are_shares(everyones: Sequence[Any]) -> bool:
    """Whether each rank's `parts_of`, in rank order, make its dataset that rank's share.

    Dataset.shard may also have split off a validation part, which is the same on every rank.
    Numbers that are not known yet are taken for those of a share.

    Raises:
      ValueError: the parts differ in another way.
    """
    parts = [[part and tuple(part) for part in theirs] for theirs in everyones]
    if all(theirs == parts[0] for theirs in parts):
        return None in parts[0]
    if all({None, (len(parts), of)} & set(theirs) for of, theirs in enumerate(parts)):
        return True
    shown = ", ".join(f"{_calls(theirs)} on rank {of}" for of, theirs in enumerate(parts))
    raise ValueError(
        f"the datasets are parts that are not the ranks' own: {shown}. Let each rank call "
        "shard(size, rank) with its own number in the job, or give every rank the same dataset"
    )


def _calls(parts: Sequence[Any]) -> str:
    """Those of Dataset.shard, as a program has them."""
    known = (f"shard{part}" if part else "shard(?)" for part in parts)
    return ".".join(known) or "none"


def check_not_sharded(dataset: tf.data.Dataset) -> None:
    """Raises ValueError if the dataset, or one that it is made from, is a share."""
    if is_share(dataset):
        raise _sharded_twice("hvd.data.shard")
    if None in parts_of(dataset):
        raise _sharded_twice("Dataset.shard")


def check_same_parts(everyones: Sequence[Any]) -> None:
    """Raises ValueError if `parts_of` is not the same on every rank: each has a share of its own.

    The same part on every rank is one that was split off for all, as for training.
    """
    if any(parts != everyones[0] for parts in everyones):
        raise _sharded_twice("Dataset.shard")


def _sharded_twice(by: str) -> ValueError:
    return ValueError(
        f"this dataset is sharded already, by {by}: sharded twice, it would lose all but one "
        "record in size * size. Leave out one of the two (hvd.data.equal_steps makes steps equal "
        "without sharding)"
    )


def check_ordered(dataset: tf.data.Dataset) -> None:
    """Raises ValueError if the dataset may give its elements in any order."""
    if unordered := nondeterministic_dataset(dataset):
        raise ValueError(
            f"this dataset has {unordered}: every rank would split an order of its own, and "
            "records would be lost and repeated. Leave that out before the split"
        )


def shuffle_seeds(dataset: tf.data.Dataset) -> list[Optional[list[int]]]:
    """The two seeds of all that is random in the dataset. None for seeds that are not known yet.

    Raises:
      ValueError: a shuffle, or a choice between datasets, has no seed, so that each rank has an
        order of its own.
    """
    seeds: list[Optional[list[int]]] = []
    for source in dataset_chain(dataset):
        kind = next((kind for kind in _RANDOM if kind in type(source).__name__), None)
        if kind is None:
            continue
        given = [getattr(source, name, None) for name in ("_seed", "_seed2")]
        pair = [None if seed is None else early_value(seed) for seed in given]
        known = [seed for seed in pair if seed is not None]
        if len(known) < len(pair):
            seeds.append(None)
            continue
        if not any(known):
            raise ValueError(
                f"this dataset has {_RANDOM[kind]} without a seed: every rank would split an order "
                "of its own, and records would be lost and repeated. Shuffle after the split, with "
                "shuffle_buffer=, or give it a seed"
            )
        seeds.append(known)
    return seeds


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Whether a shuffle, or a choice between datasets, has another order in each iteration."""
    return any(_reorders(source) for source in dataset_chain(dataset))


def _reorders(source: tf.data.Dataset) -> bool:
    kind = type(source).__name__
    if "ShuffleDataset" in kind:
        return getattr(source, "_reshuffle_each_iteration", False) is not False
    return "ShuffleAndRepeatDataset" in kind or bool(getattr(source, "_rerandomize", False))
