# SPDX-License-Identifier: Apache-2.0
"""TFRecord files, read by TensorFlow. Errors name the file and offset of a corrupt record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from hvd_tf.data.files import is_compressed
from hvd_tf.data.formats import Columns, Format, records_at_a_time

# How many records are read, and added up, at a time, unless the first one is large.
_CHUNK = 64
# The bytes around each record: its length and two checksums.
_FRAME_BYTES = 16


def tfrecord_format(paths: Sequence[str], columns: Columns) -> Format:
    """Records are string scalars, as they were written.

    Raises:
      ValueError: columns are given. These files have none.
    """
    del paths
    if columns is not None:
        raise ValueError(
            f"columns={columns!r}: TFRecord files have none; parse the records with "
            "tf.io.parse_single_example in a map after shard"
        )
    return Format(count=lambda path: None, read=_read)


def _read(path: tf.Tensor) -> tf.data.Dataset:
    """Reads one file. TensorFlow's own error has the offset but no file, and cannot be extended.

    So the reader ends a file at an error. Then the bytes read are compared with the file's size.
    """
    path, chunk = tf.numpy_function(_begin, [path], (tf.string, tf.int64))
    path.set_shape([])
    chunk.set_shape([])
    chunks = tf.data.TFRecordDataset(path).ignore_errors().batch(chunk)
    end = tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))

    def add_up(offset: tf.Tensor, records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        lengths = tf.cast(tf.strings.length(records), tf.int64)
        after = offset + tf.reduce_sum(lengths + _FRAME_BYTES)
        is_end = tf.equal(tf.size(records), 0)
        checked = tf.cond(
            is_end,
            lambda: tf.numpy_function(_check_end, [path, offset], tf.int64),
            lambda: offset,
        )
        with tf.control_dependencies([checked]):
            return after, tf.identity(records)

    return chunks.concatenate(end).scan(np.int64(0), add_up).unbatch()


def _begin(path: bytes) -> tuple[bytes, np.int64]:
    """The path, and how many of its records to read at a time.

    A file that cannot be read ends it here, because ignore_errors would try again for ever.
    """
    with tf.io.gfile.GFile(path.decode(), "rb") as file:
        length = int.from_bytes(file.read(8), "little")  # of the first record
    return path, np.int64(records_at_a_time(length + _FRAME_BYTES, _CHUNK))


def _check_end(path: bytes, offset: np.int64) -> np.int64:
    size = tf.io.gfile.stat(path.decode()).length
    if offset == size:
        return offset
    hint = (
        " It is compressed: write it without compression, or shard a "
        "tf.data.TFRecordDataset(files, compression_type='GZIP')."
        if is_compressed(path.decode())
        else ""
    )
    raise ValueError(
        f"{path.decode()}: corrupted or truncated record at byte {offset} of {size}.{hint}"
    )
