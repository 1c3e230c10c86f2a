# SPDX-License-Identifier: Apache-2.0
"""How many records of a file are read at a time: of large ones few, or they would fill memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_tf.data import parquet, tfrecord
from hvd_tf.data.formats import records_at_a_time


def test_of_large_records_few() -> None:
    assert [records_at_a_time(size, 64) for size in (0, 100, 1 << 16)] == [64] * 3
    assert [records_at_a_time(size, 64) for size in (1 << 20, 3 << 20, 1 << 40)] == [4, 1, 1]


@pytest.mark.parametrize("sizes", [[100] * 100, [3 << 20] * 3, [0, 5 << 20], [5 << 20, 0], []])
def test_tfrecords_of_any_size(tmp_path: Path, sizes: list[int]) -> None:
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for size in sizes:
            writer.write(b"x" * size)
    _, chunk = tfrecord._begin(path.encode())
    assert chunk == (1 if sizes and sizes[0] > 1 << 20 else 64)
    records = tf.data.Dataset.from_tensors(path).flat_map(
        tfrecord.tfrecord_format([path], None).read
    )
    assert [len(record) for record in records.as_numpy_iterator()] == sizes


def test_parquet_of_any_size(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    path = str(tmp_path / "a.parquet")
    texts = [bytes([i]) * (3 << 20) for i in range(3)]
    table = arrow.table({"number": [1, 2, 3], "text": arrow.array(texts, arrow.binary())})
    pytest.importorskip("pyarrow.parquet").write_table(table, path, use_dictionary=False)
    number, text = tf.int64, tf.string
    for spec, lengths in (({"number": number}, [3]), ({"number": number, "text": text}, [1] * 3)):
        chunks = list(parquet._chunks(arrow, path, spec))
        assert [len(chunk["number"]) for chunk in chunks] == lengths
        np.testing.assert_array_equal(np.concatenate([c["number"] for c in chunks]), [1, 2, 3])
    assert [bytes(chunk["text"][0]) for chunk in chunks] == texts
