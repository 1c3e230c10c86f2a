# SPDX-License-Identifier: Apache-2.0
"""Makes one rank's share: of files, whole or by record, or of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Optional

import tensorflow as tf

from hvd_tf._internal.facts import ERROR, Facts, check_same
from hvd_tf._internal.runtime import ProcessSet
from hvd_tf.data.csv_columns import kind_text
from hvd_tf.data.csv_files import csv_format
from hvd_tf.data.files import Patterns, paths_of, sizes_of
from hvd_tf.data.formats import Columns, Format, format_name
from hvd_tf.data.marks import (
    check_not_sharded,
    check_ordered,
    check_same_parts,
    parts_of,
    reshuffles,
    shuffle_seeds,
)
from hvd_tf.data.members import announce, checked_size
from hvd_tf.data.parquet import parquet_format
from hvd_tf.data.seeds import seed_of, shuffled_files
from hvd_tf.data.splitting import dealt_records, whole_files
from hvd_tf.data.steps import INFINITE, Steps, length_of
from hvd_tf.data.tfrecord import tfrecord_format
from hvd_tf.process_sets import registered

_FORMATS: dict[str, Callable[[Sequence[str], Columns], Format]] = {
    "tfrecord": tfrecord_format,
    "csv": csv_format,
    "parquet": parquet_format,
}


@dataclass(frozen=True)
class Share:
    """The records of this rank."""

    records: Callable[[tf.Tensor], tf.data.Dataset]
    """The records of the epoch with that number, an int64 scalar."""
    lengths: Optional[list[int]] = None
    """The numbers of records of all ranks, if they are known and finite."""
    is_infinite: bool = False
    is_repeatable: bool = True
    """Whether it may be read for a look: a caller's dataset may give its records once only."""


def share_of_dataset(dataset: tf.data.Dataset, steps: Steps, settings: Facts) -> Share:
    """Takes every size-th record; see `shard`."""
    facts: Facts = {"settings": settings, "parts": None, "length": None, "seeds": None}
    try:
        check_not_sharded(dataset)
        check_ordered(dataset)
        facts["parts"] = parts_of(dataset)
        facts.update(length=length_of(dataset), seeds=shuffle_seeds(dataset))
        _check_repeats(dataset, facts["length"], steps)
    except ValueError as error:
        facts[ERROR] = str(error)
    everyones = _exchange(steps, facts)
    check_same_parts([theirs["parts"] for theirs in everyones])
    check_same(
        everyones,
        "length",
        "the length of the dataset",
        "A dataset to be sharded must be the same on every rank",
    )
    check_same(
        everyones,
        "seeds",
        "the seeds of a shuffle before the split",
        "Each rank would split an order of its own: shuffle after the split, with shuffle_buffer=, "
        "or give shuffle(seed=...) and tf.random.set_seed the same seeds on every rank (in an "
        "input_fn, hvd.estimator.shard_input_fn does that)",
    )
    size, rank = len(everyones), registered(steps.process_set).rank
    # In a graph each iterator begins with the first order. Eager ones go on where the last was.
    if size > 1 and tf.executing_eagerly() and reshuffles(dataset):
        announce(
            "data: this dataset has a shuffle before the split whose order changes with each "
            "iterator. All ranks must make equally many: a rank that takes one more, for a look "
            "at a record, splits another order, and records are lost and repeated. Safe are "
            "reshuffle_each_iteration=False and shuffle_buffer=",
            steps.process_set,
        )
    # The order of records must not depend on which thread was faster.
    options = tf.data.Options()
    options.deterministic = True
    own = dataset.with_options(options).shard(size, rank) if size > 1 else dataset
    length = everyones[0]["length"]
    return Share(
        lambda epoch: own,
        lengths=dealt_records(length, size) if length >= 0 else None,
        is_infinite=length == INFINITE,
        is_repeatable=False,
    )


def _check_repeats(dataset: tf.data.Dataset, length: int, steps: Steps) -> None:
    """Raises ValueError where some ranks would come to another order than the others."""
    is_even = length == INFINITE or (length >= 0 and length % checked_size(steps.process_set) == 0)
    if steps.uneven == "repeat" and not is_even and reshuffles(dataset):
        raise ValueError(
            'uneven="repeat": ranks with fewer records begin this dataset again, whose shuffle has '
            "another order each time, and so split other orders than the rest from then on. "
            "Shuffle after the split, with shuffle_buffer=, or pass reshuffle_each_iteration=False"
        )


def share_of_files(
    source: Patterns,
    format: Optional[str],
    columns: Columns,
    steps: Steps,
    settings: Facts,
    shuffle_seed: Optional[int],
) -> Share:
    """Takes whole files if that is even, else every size-th record; see `shard`.

    `shuffle_seed` gives the order of the files. None: that of the source on the first rank.
    """
    facts: Facts = {
        "settings": settings,
        "format": None,
        "files": None,
        "columns": _columns_fact(columns),
    }
    try:
        paths = paths_of(source)
        facts["format"] = format_name(paths, format)
        sizes = sizes_of(paths)
        if not any(sizes):
            raise ValueError(f"all files are empty: {', '.join(paths[:3])}")
        # Parts without a record may be empty files, which no format can read.
        filled = [(path, size) for path, size in zip(paths, sizes) if size]
        paths, sizes = [path for path, _ in filled], [size for _, size in filled]
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r}: pass a list of names")
        if columns is not None and len(columns) == 0:
            raise ValueError(f"columns={columns!r}: name at least one, or pass None for all")
        form = _FORMATS[facts["format"]](sorted(paths), columns)
        counts = [form.count(path) for path in paths]
        facts["files"] = list(zip(paths, sizes, counts))
    except (ValueError, ImportError, tf.errors.OpError) as error:
        facts[ERROR] = str(error)
    everyones = _exchange(steps, facts)
    same = "Every rank must see the same files with the same contents"
    check_same(everyones, "format", "the files' format", same)
    listed = everyones[0]["files"]
    for theirs in everyones:  # a folder is listed in another order on another host
        theirs["files"] = sorted(theirs["files"])
    check_same(everyones, "files", "the list of files (path, bytes, records)", same)
    check_same(everyones, "columns", "columns=", "Pass the same on every rank")
    files = _Files(form, *map(list, zip(*listed)))
    return files.share(len(everyones), steps.process_set, shuffle_seed)


def _columns_fact(columns: Columns) -> Any:
    if isinstance(columns, Mapping):
        return {str(name): kind_text(kind) for name, kind in columns.items()}
    return columns if columns is None else [str(name) for name in columns]


@dataclass(frozen=True)
class _Files:
    form: Format
    paths: Sequence[str]
    sizes_bytes: Sequence[int]
    records: list[Optional[int]]

    def share(self, size: int, process_set: ProcessSet, shuffle_seed: Optional[int]) -> Share:
        rank = registered(process_set).rank
        counts = [count for count in self.records if count is not None]
        known = len(counts) == len(self.records)
        whole = whole_files(counts if known else self.sizes_bytes, size)
        mine = self.paths if whole is None else [self.paths[place] for place in whole[rank]]
        by_record = size > 1 and whole is None
        if size > 1:
            how = "by record: every rank reads everything" if by_record else "whole"
            what = "the file is" if len(self.paths) == 1 else f"{len(self.paths)} files are"
            announce(f"data: {what} shared out {how}", process_set)
        # If every rank reads all files, all must read them in one order.
        order = None if shuffle_seed is None else seed_of(shuffle_seed, None if by_record else rank)

        def records(epoch: tf.Tensor) -> tf.data.Dataset:
            paths = tf.constant(mine)
            if order is not None:
                paths = shuffled_files(paths, order, epoch)
            all_records = tf.data.Dataset.from_tensor_slices(paths).flat_map(self.form.read)
            return all_records.shard(size, rank) if by_record else all_records

        lengths = None
        if known and whole is None:
            lengths = dealt_records(sum(counts), size)
        elif known and whole is not None:
            lengths = [sum(counts[place] for place in share) for share in whole]
        return Share(records, lengths)


def _exchange(steps: Steps, facts: Facts) -> list[Facts]:
    everyones = steps.exchange(facts)
    check_same(everyones, "settings", "what was asked for", "Call shard alike on every rank")
    return everyones


def settings_of(**settings: Any) -> Facts:
    """Arguments that must be the same on every rank, after a check of the counts among them.

    Raises:
      ValueError: a count is not a positive number. It names the count.
    """
    for name in ("batch_size", "shuffle_buffer", "epochs"):
        value = settings[name]
        if value is not None and not _is_int(value, 1):
            raise ValueError(f"{name}={value!r}: pass a number of at least 1, or None")
    for name in ("seed", "first_epoch"):
        if not _is_int(settings[name], 0):
            raise ValueError(f"{name}={settings[name]!r}: pass an int of at least 0")
    return {name: value if value is None else int(value) for name, value in settings.items()}


def _is_int(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least
