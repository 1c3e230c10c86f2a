# SPDX-License-Identifier: Apache-2.0
"""Files as people have them: empty parts, other columns, marks. Arguments that are wrong."""

from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest
import tensorflow as tf
from shares import refused

import hvd_tf as hvd

RANKS = (3,)


def written(rank, files):
    """Have rank 0 write them: bytes by path."""
    for path, data in files.items() if rank == 0 else ():
        path.write_bytes(data)
    hvd.broadcast_object(None, name="written")


def everyones(dataset, column):
    mine = [int(record[column]) for record in dataset]
    return sorted(sum(hvd.allgather_object(mine, name="everyones"), []))


def test_a_list_keeps_its_order_and_its_repetitions(folder, rank, size):
    """That of the first rank: a folder is listed in another order on another host."""
    a, b = str(folder / "a.csv"), str(folder / "b.csv")
    written(rank, {folder / "a.csv": b"n\n1\n2\n", folder / "b.csv": b"n\n3\n4\n5\n6\n"})

    def read(source):
        dataset = hvd.data.shard(source, columns={"n": tf.int64}, uneven="keep")
        parts = hvd.allgather_object([int(record["n"]) for record in dataset])
        steps = itertools.zip_longest(*parts)
        return [number for step in steps for number in step if number is not None]

    assert read([b, a] if rank == 0 else [a, b]) == [3, 4, 5, 6, 1, 2]
    assert read([a, b, a]) == [1, 2, 3, 4, 5, 6, 1, 2]
    assert read([b, f"{folder}/*.csv"]) == [3, 4, 5, 6, 1, 2, 3, 4, 5, 6]
    assert read({b, a}) == read(f"{folder}/*.csv") == [1, 2, 3, 4, 5, 6]
    refused("the list of files .*differs", [a, b] if rank == 0 else [a, b, b])


@pytest.mark.parametrize("name", ["b[1].csv", "b{1}.csv", "b?.csv", "b*.csv"])
def test_a_file_with_the_marks_of_a_pattern(folder, rank, name):
    written(rank, {folder / name: b"a\n1\n2\n3\n", folder / "bb.csv": b"a\n4\n5\n6\n"})
    assert everyones(hvd.data.shard(f"{folder}/{name}", columns={"a": tf.int64}), "a") == [1, 2, 3]
    matching = hvd.data.shard(f"{folder}/b[b].csv", columns={"a": tf.int64})
    assert everyones(matching, "a") == [4, 5, 6]


def test_empty_parts_of_csv(folder, rank):
    written(rank, {folder / "0.csv": b"", folder / "1.csv": b"a\n1\n2\n3\n", folder / "2.csv": b""})
    dataset = hvd.data.shard(f"{folder}/*.csv", columns={"a": tf.int64}, uneven="keep")
    assert everyones(dataset, "a") == [1, 2, 3]


def test_empty_parts_of_parquet(folder, rank):
    pa, parquet = arrow()
    if rank == 0:
        parquet.write_table(pa.table({"a": [1, 2, 3]}), f"{folder}/1.parquet")
        parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), f"{folder}/2.parquet")
    written(rank, {folder / "0.parquet": b""})
    dataset = hvd.data.shard(f"{folder}/*.parquet", uneven="keep")
    assert everyones(dataset, "a") == [1, 2, 3]


def arrow():
    return pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def test_a_parquet_file_without_a_column(folder, rank):
    """Its last column is not taken instead, though it is of the same type."""
    pa, parquet = arrow()
    if rank == 0:
        parquet.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), f"{folder}/0.parquet")
        parquet.write_table(pa.table({"a": [5, 6], "c": [7, 8]}), f"{folder}/1.parquet")
    written(rank, {})
    dataset = hvd.data.shard(f"{folder}/*.parquet", columns=["a", "b"], uneven="keep")
    text = "1.parquet: it has no column 'b', as the first file has; it has a, c: name columns"
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        list(dataset)
    assert everyones(hvd.data.shard(f"{folder}/*.parquet", columns=["a"], uneven="keep"), "a") == [
        1,
        2,
        5,
        6,
    ]


def test_a_parquet_file_with_two_columns_of_a_name(folder, rank):
    pa, parquet = arrow()
    twice, once = (folder / f"{name}.parquet" for name in ("twice", "once"))
    if rank == 0:
        columns = [pa.array([1, 2, 3])] * 3
        parquet.write_table(pa.Table.from_arrays(columns, ["a", "b", "b"]), twice)
        parquet.write_table(pa.Table.from_arrays(columns[:2], ["a", "b"]), once)
    written(rank, {})
    text = "twice.parquet: it has 2 columns 'b'; leave them out"
    refused(text, str(twice))
    assert everyones(hvd.data.shard(str(twice), columns=["a"]), "a") == [1, 2, 3]
    both = hvd.data.shard(f"{folder}/*.parquet", uneven="keep")  # "once" is the first
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        list(both)


def test_csv_with_a_byte_order_mark(folder, rank):
    """As spreadsheets write it."""
    rows = "\ufeffa,b\r\n1,ä\r\n2,ö\r\n3,\r\n".encode()
    written(rank, {folder / "0.csv": rows, folder / "1.csv": rows.replace(b"\xef\xbb\xbf", b"")})
    dataset = hvd.data.shard(f"{folder}/*.csv", columns={"a": tf.int64, "b": tf.string})
    mine = [(int(record["a"]), record["b"].numpy().decode()) for record in dataset]
    all_records = sum(hvd.allgather_object(mine), [])
    assert sorted(all_records) == sorted([(1, "ä"), (2, "ö"), (3, "")] * 2)


def test_empty_lines_of_csv(folder, rank):
    """With one column they may be empty fields: where these have a value."""
    one, two = folder / "1.csv", folder / "2.csv"
    written(rank, {one: b"x\n1\n\n3\n4\n\n", two: b"x,y\n1,2\n\n3,4\n"})

    def read(path, columns):
        return everyones(hvd.data.shard(str(path), columns=columns, uneven="keep"), "x")

    assert read(one, {"x": -1}) == [-1, -1, 1, 3, 4]
    assert read(one, {"x": "-2"}) == [-2, -2, 1, 3, 4]
    assert read(one, {"x": tf.int64}) == read(one, {"x": tf.string}) == [1, 3, 4]
    assert read(two, {"x": -1}) == [1, 3]


def test_a_long_field_of_csv(folder, rank):
    rows = b"".join(b"%d,%s\n" % (length, b"x" * length) for length in (1, 200_000, 3))
    written(rank, {folder / "0.csv": b"length,text\n" + rows})
    dataset = hvd.data.shard(str(folder / "0.csv"))
    assert [int(one["length"]) == len(one["text"].numpy()) for one in dataset] == [True]


def test_csv_that_is_none(folder, rank):
    packed = folder / "0.csv.gz"
    written(rank, {packed: gzip.compress(b"a,b\n1,2\n"), folder / "1.csv": b"\xff\xfea\n1\n"})
    refused("0.csv.gz: it is compressed", str(packed), format="csv")
    refused("1.csv: its first line cannot be read: .*utf-8.*: write it as UTF-8", f"{folder}/1.csv")


@pytest.mark.parametrize("source", [None, np.arange(3), (np.arange(3), np.arange(3)), len])
def test_what_is_no_source(source):
    refused("source.*: pass file names, patterns or a tf.data.Dataset", source)


def test_wrong_arguments(folder, rank, size):
    written(rank, {folder / "0.csv": b"a\n1\n2\n3\n"})
    refused("columns='a': pass a list of names", f"{folder}/0.csv", columns="a")
    for nothing in ([], {}):
        text = r"columns=(\[\]|\{\}): name at least one, or pass None"
        refused(text, f"{folder}/0.csv", columns=nothing)
    dataset = tf.data.Dataset.range(10 * size)
    refused("seed=None: pass an int of at least 0", dataset, seed=None)
    refused("batch_size='8': pass a number of at least 1", dataset, "8")
    refused("batch_size=2.5: pass a number of at least 1", dataset, 2.5)
    text = "batch_size=16 with drop_remainder=True leaves no batch: .* has 10 records .* at most 10"
    refused(text, dataset, 16, drop_remainder=True)
    endless = hvd.data.shard(dataset, 16, drop_remainder=True, epochs=None)
    assert next(iter(endless)).shape == [16]  # of two passes


def test_what_a_column_may_be(folder, rank, size):
    lines = "".join(f"{number},{number}.5,\n" for number in range(size))
    path = str(folder / "0.csv")
    written(rank, {folder / "0.csv": f"a,b,c\n{lines}".encode()})
    for kind, dtype, empty in [
        (str, tf.string, b""),
        (bytes, tf.string, b""),
        (b"int64", tf.string, b"int64"),
        ("none", tf.string, b"none"),
        (tf.constant("none"), tf.string, b"none"),
        (tf.constant(2.0), tf.float32, 2.0),
        (np.int16(3), tf.int16, 3),
        (np.array(4), tf.int64, 4),
    ]:
        asked = {"a": int, "b": float, "c": kind}
        (record,) = hvd.data.shard(path, columns=asked).as_numpy_iterator()
        assert record == {"a": rank, "b": rank + 0.5, "c": empty}
        spec = hvd.data.shard(path, columns=asked).element_spec
        assert [spec[name].dtype for name in "abc"] == [tf.int64, tf.float32, dtype]
    for kind in (None, [0.0], np.zeros(1), dict, object()):
        refused("columns: 'a': .* is neither a dtype nor a single value", path, columns={"a": kind})
    refused("'float32' is the name of a dtype: pass tf.as_dtype", path, columns={"a": "float32"})
    refused("'a' cannot be bool: numbers and strings can", path, columns={"a": True})


def test_ranks_that_ask_for_different_columns(folder, rank):
    written(rank, {folder / "0.csv": b"a,b\n1,2\n3,4\n5,6\n"})
    path = str(folder / "0.csv")
    refused("columns= differs", path, columns=["a"] if rank else ["a", "b"])
    refused("columns= differs", path, columns={"a": tf.int64 if rank else tf.int32})
    refused("columns= differs", path, columns={"a": rank})
    assert list(hvd.data.shard(path, columns={"a": np.int64}))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_numbers_of_csv_of_any_precision(folder, rank, dtype):
    written(rank, {folder / "0.csv": b"a\n1.5\n-2e3\n\n0.25\n"})
    dataset = hvd.data.shard(str(folder / "0.csv"), columns={"a": dtype}, uneven="keep")
    values = sum(hvd.allgather_object([float(one["a"]) for one in dataset]), [])
    assert sorted(values) == [-2000.0, 0.25, 1.5] and dataset.element_spec["a"].dtype == dtype
    bad = folder / "1.csv"
    written(rank, {bad: b"a\n1\nx\n2\n3\n"})
    if rank == 0:
        with pytest.raises(tf.errors.OpError, match="line 3: column 'a' is 'x'"):
            list(hvd.data.shard(str(bad), columns={"a": dtype}, uneven="keep"))
    else:
        hvd.data.shard(str(bad), columns={"a": dtype}, uneven="keep")
