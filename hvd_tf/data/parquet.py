# SPDX-License-Identifier: Apache-2.0
"""Parquet files, read by pyarrow. Errors name the file and the records that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_tf.data.formats import Columns, Format, records_at_a_time, records_from_arrays

# How many records are converted at a time, unless they are large.
_CHUNK = 4096


def parquet_format(paths: Sequence[str], columns: Columns) -> Format:
    """Records are dicts from column to scalar, in the file's dtypes.

    Args:
      paths: the files; the first one's schema counts.
      columns: None for all, or names.

    Raises:
      ValueError: there is no such column, or two, or it does not hold scalars, or a file is not
        Parquet.
      ImportError: pyarrow is not installed.
    """
    arrow = _pyarrow()
    if isinstance(columns, Mapping):
        raise ValueError("columns: Parquet files have dtypes of their own; pass a list of names")
    schema = _opened(arrow, paths[0]).schema_arrow
    spec: dict[str, tf.DType] = {}
    for name in schema.names if columns is None else columns:
        if name not in schema.names:
            raise ValueError(
                f"columns: {paths[0]} has no column {name!r}; it has {', '.join(schema.names)}"
            )
        _check_once(paths[0], schema.names, name)
        spec[name] = _dtype(arrow, name, schema.field(name).type)

    def chunks(path: bytes) -> Iterator[dict[str, np.ndarray]]:
        return _chunks(arrow, path.decode(), spec)

    return Format(
        count=lambda path: int(_opened(arrow, path).metadata.num_rows),
        read=lambda path: records_from_arrays(chunks, spec, path),
    )


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "Parquet files need pyarrow: pip install pyarrow ('pyarrow<24' beside TensorFlow "
            f"2.15, whose numpy is older than 2). {error}"
        ) from None
    return pyarrow


def _opened(arrow: ModuleType, path: str) -> Any:
    try:
        return arrow.parquet.ParquetFile(path, memory_map=True)
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not a Parquet file that can be read: {error}") from None


def _check_once(path: str, names: Sequence[str], name: str) -> None:
    if names.count(name) > 1:
        raise ValueError(
            f"{path}: it has {names.count(name)} columns {name!r}; leave them out with "
            "columns=[...], or write the file with different names"
        )


def _dtype(arrow: ModuleType, name: str, kind: Any) -> tf.DType:
    types = arrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return tf.string
    if types.is_binary(kind) or types.is_large_binary(kind):
        return tf.string
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        # Not by to_pandas_dtype, which imports pandas.
        return tf.as_dtype(arrow.array([], kind).to_numpy(zero_copy_only=False).dtype)
    raise ValueError(
        f"columns: {name!r} is of type {kind}, and numbers, booleans and strings can be read; "
        "leave it out with columns=[...], or write it as one of these"
    )


def _chunks(
    arrow: ModuleType, path: str, spec: Mapping[str, tf.DType]
) -> Iterator[dict[str, np.ndarray]]:
    record = 0
    try:
        file = _opened(arrow, path)
        names = file.schema_arrow.names
        for name in spec:
            if name not in names:
                raise ValueError(
                    f"{path}: it has no column {name!r}, as the first file has; it has "
                    f"{', '.join(names)}: name columns that all files have, or other files"
                )
            _check_once(path, names, name)
        chunk = records_at_a_time(_record_bytes(file.metadata, spec), _CHUNK)
        for batch in file.iter_batches(batch_size=chunk, columns=list(spec)):
            yield {
                name: _column(arrow, batch.column(batch.schema.get_field_index(name)), name, dtype)
                for name, dtype in spec.items()
            }
            record += batch.num_rows
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        if str(error).startswith(path):
            raise
        raise ValueError(f"{path}: records from {record} cannot be read: {error}") from None


def _record_bytes(metadata: Any, spec: Mapping[str, tf.DType]) -> float:
    """Of a record in these columns, as the file has them without compression."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    used = [one for one in columns if one.path_in_schema in spec]
    return sum(one.total_uncompressed_size for one in used) / max(metadata.num_rows, 1)


def _column(arrow: ModuleType, array: Any, name: str, dtype: tf.DType) -> np.ndarray:
    if arrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.null_count and not dtype.is_floating:
        raise ValueError(
            f"column {name!r} has {array.null_count} missing values, which {dtype.name} cannot "
            "hold; fill them when writing the file"
        )
    if dtype == tf.string:
        return np.array(array.cast(arrow.large_binary()).to_pylist(), object)
    values = array.to_numpy(zero_copy_only=False)  # a missing float is NaN
    if values.dtype != dtype.as_numpy_dtype:
        raise ValueError(f"column {name!r} is {values.dtype}, and in the first file {dtype.name}")
    return values
