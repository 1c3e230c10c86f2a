# SPDX-License-Identifier: Apache-2.0
"""Files that are missing, empty or damaged: errors on all ranks, with the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorflow as tf
from shares import as_numpy, refused, write_tfrecords

import hvd_tf as hvd

RANKS = (3,)


def test_files_that_are_not_there(folder, rank, size):
    refused("no file matches .*nothing-", f"{folder}/nothing-*.csv")
    refused("/absent.csv does not exist", f"{folder}/absent.csv")
    refused("is a directory", str(folder), format="csv")
    refused("do not tell one format", [f"{folder}/a.csv", f"{folder}/a.tfrecord"])
    refused("format='json'", f"{folder}/a.json", format="json")
    refused(r"source=\[\]", [])


def test_empty_files(folder, rank, size):
    refused("all files are empty", write_tfrecords(folder, (0, 0), rank))
    few = write_tfrecords(folder, (size - 1,), rank)
    with pytest.raises(tf.errors.OpError, match=f"rank {size - 1} has no batch at all"):
        list(hvd.data.shard(few))
    dataset = hvd.data.shard(few, epochs=None)
    if rank == size - 1:
        with pytest.raises(tf.errors.OpError, match=f"rank {rank} has no record at all"):
            next(iter(dataset))


def test_files_that_one_rank_does_not_have(tmp_path, rank, size):
    own = tmp_path / "own.tfrecord"  # in a folder of each rank's own
    link = Path(hvd.broadcast_object(str(tmp_path), 0, name="folder")) / "link.tfrecord"
    refused("the list of files .*differs", write_own(own))
    hidden = link if rank == 0 else link.with_name("absent.tfrecord")
    if rank == 0:
        write_own(link)
    hvd.broadcast_object(None, name="written")
    ranks = ", ".join(map(str, range(1, size)))
    refused(f"rank {ranks}: .*absent.tfrecord does not exist", str(hidden))


def write_own(path):
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(b"x")
    return str(path)


@pytest.mark.parametrize("damage", ["corrupt", "truncated", "compressed"])
def test_a_damaged_tfrecord_is_named(folder, rank, size, damage):
    pattern = write_tfrecords(folder, [50] * size, rank)
    path = f"{folder}/part-00.tfrecord"
    if rank == 0:
        data = bytearray(Path(path).read_bytes())
        data[10 * 41 + 20] ^= 1  # in the record at 10 * 41
        if damage == "truncated":
            data = data[: 10 * 41 + 20]
        if damage == "compressed":
            options = tf.io.TFRecordOptions(compression_type="GZIP")
            with tf.io.TFRecordWriter(path, options) as writer:
                writer.write(os.urandom(4000))
        else:
            Path(path).write_bytes(data)
    hvd.broadcast_object(None, name="damaged")
    dataset = hvd.data.shard(pattern, epochs=None)
    offset = 0 if damage == "compressed" else 410
    text = f"{path}: corrupted or truncated record at byte {offset} of "
    whole = damage == "corrupt"
    if rank == 0 or not whole:
        with pytest.raises(tf.errors.InvalidArgumentError, match=text) as caught:
            as_numpy(dataset.take(1000))
        assert ("It is compressed" in str(caught.value)) == (damage == "compressed")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("7,x", r"line 4: column 'b' is 'x', which is no float32"),
        ("7,", r"line 4: column 'b' is '', which is no float32; give a default"),
        ("7,1_0", r"line 4: column 'b' is '1_0', which is no float32"),
        ("7", r"line 4: 1 fields, and the header has 2"),
        ('7,"8', r"line \d: unexpected end of data"),
        ("7,caf\xe9", r"line 4: 'utf-8' codec can't decode byte 0xe9 .*: write it as UTF-8 text"),
        pytest.param("5,6\n" * 1500 + "7,x", "line 1504: column 'b' is 'x'", id="many lines"),
    ],
)
def test_a_damaged_csv_is_named(folder, rank, size, line, text):
    path = folder / "a.csv"
    if rank == 0:
        path.write_text(f"a,b\n1,2\n3,4\n{line}\n", "latin-1")
    hvd.broadcast_object(None, name="damaged")
    dataset = hvd.data.shard(str(path), columns={"b": tf.float32}, uneven="keep")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path}: {text}"):
        as_numpy(dataset)
    refused("has no column 'c'; it has a, b", str(path), columns=["c"])


@pytest.mark.parametrize(
    ("dtype", "text", "last"),
    [
        (tf.uint8, "300", 255),
        (tf.uint8, "-1", 0),
        (tf.int32, "3000000000", -(2**31)),
        (tf.uint64, "-1", 2**64 - 1),
        (tf.int64, "9223372036854775808", 2**63 - 1),
        (tf.int64, "1_000", 7),
    ],
)
def test_what_is_no_such_integer_is_named(folder, rank, size, dtype, text, last):
    fits, does_not = folder / "fits.csv", folder / "does_not.csv"
    if rank == 0:
        fits.write_text("a\n" + f"{last}\n" * size)
        does_not.write_text(f"a\n1\n{text}\n")
    hvd.broadcast_object(None, name="written")
    (seen,) = as_numpy(hvd.data.shard(str(fits), columns={"a": dtype}))
    assert seen == {"a": last}
    dataset = hvd.data.shard(str(does_not), columns={"a": dtype}, uneven="keep")
    words = f"{does_not}: line 3: column 'a' is '{text}', which is no {dtype.name}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        as_numpy(dataset)


def test_a_damaged_parquet_is_named(folder, rank, size):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = f"{folder}/a.parquet"
    if rank == 0:
        parquet.write_table(pa.table({"a": [1, None] * 5, "l": [[1]] * 10}), path)
        Path(folder, "b.parquet").write_bytes(b"nothing of the kind")
    hvd.broadcast_object(None, name="damaged")
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{path}: .*column 'a' has 5 missing"):
        as_numpy(hvd.data.shard(path, columns=["a"], uneven="keep"))
    refused("'l' is of type list", path)
    refused("b.parquet: not a Parquet file", f"{folder}/b.parquet")
