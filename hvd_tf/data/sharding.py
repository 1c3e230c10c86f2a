# SPDX-License-Identifier: Apache-2.0
"""`shard`: each rank's share of files or of a dataset, shuffled, batched, in equal steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional, Union

import numpy as np
import tensorflow as tf

from hvd_tf._internal.runtime import ProcessSet, global_process_set
from hvd_tf.data.endless import endless
from hvd_tf.data.files import Patterns
from hvd_tf.data.formats import Columns
from hvd_tf.data.marks import mark_inexact, mark_share
from hvd_tf.data.members import announce, checked_size
from hvd_tf.data.seeds import seed_of, shuffled
from hvd_tf.data.shares import Share, settings_of, share_of_dataset, share_of_files
from hvd_tf.data.splitting import check_none_empty, check_uneven, equal_length
from hvd_tf.data.steps import Steps, at_length
from hvd_tf.process_sets import registered


@tf.autograph.experimental.do_not_convert
def shard(
    source: Union[tf.data.Dataset, Patterns],
    batch_size: Optional[int] = None,
    *,
    format: Optional[str] = None,
    columns: Columns = None,
    shuffle_buffer: Optional[int] = None,
    seed: int = 0,
    epochs: Optional[int] = 1,
    first_epoch: int = 0,
    uneven: str = "drop",
    drop_remainder: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.data.Dataset:
    """This rank's share of the data, in as many steps as on every other rank. A collective call.

    Ranks get whole files if their totals then differ by less than 2 %. Totals are records where
    they are cheaply known, else bytes. Otherwise every rank reads all files, and takes every
    size-th record. A dataset is shared out by record. It must give the same records in the same
    order on every rank. What is dropped is printed once.

    Args:
      source: a tf.data.Dataset of single records, or a file name, a glob pattern or a list of
        these. Files and their contents must be the same on every rank. A list is read in its order
        on the first rank, and a file as often as it is named.
      batch_size: records for each rank and step. None: records stay single, and each is a step.
      format: "tfrecord", "csv" or "parquet"; None: by the files' names.
      columns: None for all. For CSV: names (of string columns), or a mapping from names to a dtype
        or to a value for empty fields. For Parquet: names.
      shuffle_buffer: how many records are shuffled at a time. Files are then shuffled too. None:
        the order of the source.
      seed: of the shuffle, together with the rank and the epoch's number. So each rank and epoch
        has its own order, and it is the same in every run.
      epochs: passes over the data. None: for ever, for training that ends with `max_steps`. Then
        batches may span two passes, and ranks with unknown lengths need no agreement.
      first_epoch: the number of the first pass, for training that goes on. Each iteration of the
        result begins with it: see docs/data.md for `model.fit(epochs=n)`.
      uneven: what happens in a pass where ranks have different numbers of records or batches.
        "drop": all end with the shortest. "repeat": the shorter ones start again until the longest
        has ended. "raise": an error, on every rank. "keep": nothing: every record once, for
        evaluation without collectives in its loop.
      drop_remainder: drop the last batch where it is smaller.
      process_set: the ranks that share the data, this one among them.

    Returns:
      A dataset of the source's structure. Of files it has string scalars (TFRecord), or dicts from
      column to scalar (CSV, Parquet). With `batch_size` there is a first dimension. Iterate over it
      on all ranks or on none.

    Raises:
      ValueError: on every rank. A file is missing, unreadable or not the same everywhere; nothing
        matches; a rank would have no record; lengths differ and uneven="raise"; the dataset is
        sharded already; Parquet without pyarrow; arguments are wrong or differ. Errors that only
        reading can find come while iterating, as tf.errors.OpError.
      RuntimeError: while a tf.function is traced.
    """
    check_uneven(uneven)
    checked_size(process_set)
    settings = settings_of(
        batch_size=batch_size,
        shuffle_buffer=shuffle_buffer,
        seed=seed,
        epochs=epochs,
        first_epoch=first_epoch,
        drop_remainder=drop_remainder,
    )
    steps = Steps(uneven, process_set)
    if isinstance(source, tf.data.Dataset):
        share = share_of_dataset(source, steps, settings)
    else:
        files_seed = None if shuffle_buffer is None else seed
        share = share_of_files(source, format, columns, steps, settings, files_seed)
    passes = _Passes(share, steps, batch_size, drop_remainder)
    if shuffle_buffer is not None:
        passes.shuffle(shuffle_buffer, seed_of(seed, process_set.rank()))
    dataset = mark_share(passes.dataset(epochs, first_epoch))
    return dataset if epochs is None or passes.are_exact() else mark_inexact(dataset)


class _Passes:
    """Makes the dataset of all passes from a share."""

    def __init__(
        self, share: Share, steps: Steps, batch_size: Optional[int], drop_remainder: bool
    ) -> None:
        self._share = share
        self._steps = steps
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._shuffle: Optional[tuple[int, int]] = None
        self._wanted: Optional[int] = None  # how many records every rank takes in a pass
        if share.lengths is not None:
            self._wanted = equal_length(share.lengths, steps.uneven, "record")
            self._announce(share.lengths)

    def shuffle(self, buffer: int, seed: int) -> None:
        self._shuffle = buffer, seed

    def are_exact(self) -> bool:
        """Whether each record is taken once in a pass, as far as is known."""
        if self._drop_remainder:
            return False
        if self._steps.uneven in ("keep", "raise") or self._steps.process_set.size() == 1:
            return True
        return self._share.lengths is not None and set(self._share.lengths) == {self._wanted}

    def dataset(self, epochs: Optional[int], first_epoch: int) -> tf.data.Dataset:
        if epochs is None:
            return self._endless(first_epoch)
        if self._is_certain():
            passes = self._passes(epochs, first_epoch, self._batches)
        else:
            passes = self._steps.iterations(
                lambda iteration: self._passes(
                    epochs,
                    first_epoch,
                    lambda epoch: self._steps.agreed_pass(self._batches(epoch), iteration, epoch),
                )
            )
        length = self._steps_of_pass()
        if length is None:
            return passes
        if length == 0 and self._wanted is not None:
            raise ValueError(
                f"batch_size={self._batch_size} with drop_remainder=True leaves no batch: every "
                f"rank has {self._wanted} records in a pass: pass a batch_size of at most "
                f"{self._wanted}"
            )
        return passes.apply(tf.data.experimental.assert_cardinality(length * epochs))

    def _endless(self, first_epoch: int) -> tf.data.Dataset:
        numbers = tf.data.Dataset.range(first_epoch, np.iinfo(np.int64).max)
        if self._share.lengths is not None:  # whatever `uneven` is: no pass would give a record
            check_none_empty(self._share.lengths, "record")
        if self._is_certain():
            return self._batched(numbers.flat_map(self._records))
        if not self._share.is_repeatable:
            most = (self._batch_size or 1) + 1
            message = (
                f"rank {self._steps.process_set.rank()} has no record in {most} passes: the source "
                "has fewer records than ranks, or gives its records once only. Use fewer ranks, "
                "more data, or epochs=1"
            )
            return endless(self._records, self._batched, first_epoch, most, message)
        first = numbers.take(1).flat_map(self._first_pass)
        return self._batched(first.concatenate(numbers.skip(1).flat_map(self._records)))

    def _passes(
        self, epochs: int, first_epoch: int, of_pass: Callable[[tf.Tensor], tf.data.Dataset]
    ) -> tf.data.Dataset:
        if epochs == 1 and self._shuffle is None:
            return of_pass(tf.constant(first_epoch, tf.int64))
        return tf.data.Dataset.range(first_epoch, first_epoch + epochs).flat_map(of_pass)

    def _is_certain(self) -> bool:
        return self._share.lengths is not None or self._share.is_infinite

    def _batches(self, epoch: tf.Tensor) -> tf.data.Dataset:
        return self._batched(self._records(epoch))

    def _first_pass(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """The first of passes without end, which fails without records: see `endless`."""
        # It is counted before the shuffle, which would read as many records as it holds to give
        # one. It takes as long as a few training steps, so the other passes go without.
        some = self._share.records(epoch).take(1)
        found = some.reduce(np.int64(0), lambda count, _: count + 1)
        message = (
            f"rank {self._steps.process_set.rank()} has no record at all: there are fewer records "
            "than ranks, or an empty shard. Use fewer ranks, or more data or files"
        )
        with tf.control_dependencies([tf.debugging.Assert(found > 0, [message])]):
            return self._records(epoch)

    def _records(self, epoch: tf.Tensor) -> tf.data.Dataset:
        records = self._share.records(epoch)
        if self._shuffle is not None:
            records = shuffled(records, *self._shuffle, epoch)
        if self._wanted is not None:
            records = at_length(records, self._wanted, self._length())
        return records

    def _batched(self, records: tf.data.Dataset) -> tf.data.Dataset:
        if self._batch_size is None:
            return records
        return records.batch(self._batch_size, drop_remainder=self._drop_remainder)

    def _length(self) -> int:
        """The number of this rank's records. It must be known."""
        assert self._share.lengths is not None
        return self._share.lengths[registered(self._steps.process_set).rank]

    def _steps_of_pass(self) -> Optional[int]:
        if self._share.lengths is None:
            return None
        records = self._length() if self._wanted is None else self._wanted
        if self._batch_size is None:
            return records
        if self._drop_remainder:
            return records // self._batch_size
        return -(-records // self._batch_size)

    def _announce(self, lengths: list[int]) -> None:
        total, process_set = sum(lengths), self._steps.process_set
        batch_size = self._batch_size or 1
        taken = total
        if self._wanted is not None:
            taken = self._wanted * len(lengths)
            if self._drop_remainder:
                taken -= self._wanted % batch_size * len(lengths)
        if taken < total:
            announce(f"data: {total - taken} of {total} records are dropped a pass", process_set)
        elif taken > total:
            announce(f"data: {taken - total} of {total} records come twice a pass", process_set)
