# SPDX-License-Identifier: Apache-2.0
"""CSV files with a header line. Errors name the file and line of a record that does not fit."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from hvd_tf.data.csv_columns import dtype_and_default
from hvd_tf.data.files import is_compressed
from hvd_tf.data.formats import Columns, Format, records_from_arrays

# How many lines are converted at a time.
_CHUNK = 1024


def csv_format(paths: Sequence[str], columns: Columns) -> Format:
    """Records are dicts from column to scalar.

    Args:
      paths: the files; the first one's header has the columns.
      columns: None for all. A list of names gives strings. A mapping from names gives each column's
        dtype, or a value that stands for an empty field and has the dtype.

    Raises:
      ValueError: there is no such column, or no header.
    """
    # Python's limit for a field is 128 KiB, which a text may exceed. It is one for the process.
    csv.field_size_limit(sys.maxsize)
    header = _header(paths[0])
    names = header if columns is None else columns
    asked: Mapping[str, Any] = (
        names if isinstance(names, Mapping) else dict.fromkeys(names, tf.string)
    )
    spec: dict[str, tf.DType] = {}
    defaults: dict[str, Any] = {}
    for name, kind in asked.items():
        if name not in header:
            raise ValueError(
                f"columns: {paths[0]} has no column {name!r}; it has {', '.join(header)}"
            )
        spec[name], defaults[name] = dtype_and_default(name, kind)

    def chunks(path: bytes) -> Iterator[dict[str, np.ndarray]]:
        return _chunks(path.decode(), header, spec, defaults)

    return Format(
        count=lambda path: None, read=lambda path: records_from_arrays(chunks, spec, path)
    )


def _header(path: str) -> list[str]:
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            header = next(csv.reader(_lines(file)), None)
    except (csv.Error, ValueError) as error:
        if is_compressed(path):
            raise ValueError(f"{path}: it is compressed: unpack it first") from None
        raise ValueError(
            f"{path}: its first line cannot be read: {error}: write it as UTF-8 text"
        ) from None
    if not header or len(set(header)) != len(header):
        raise ValueError(f"{path}: its first line is no header of different column names")
    return header


def _lines(file: tf.io.gfile.GFile) -> Iterator[str]:
    """The lines, without the mark (BOM) that spreadsheets write before the first one."""
    for number, line in enumerate(file):
        yield line if number else line.removeprefix("\ufeff")


def _chunks(
    path: str,
    header: Sequence[str],
    spec: Mapping[str, tf.DType],
    defaults: Mapping[str, Optional[str]],
) -> Iterator[dict[str, np.ndarray]]:
    with tf.io.gfile.GFile(path, "r") as file:
        reader = csv.reader(_lines(file), strict=True)
        try:
            own_header = next(reader, None)
            if own_header is not None and own_header != list(header):
                raise ValueError(f"the header is {own_header}, and in the first file {header}")
            # With one column, a line without text is a field without text.
            is_field = len(header) == 1 and defaults[header[0]] is not None
            for rows, lines in _rows(reader, len(header), [""] if is_field else []):
                yield {
                    name: _column(
                        [row[header.index(name)] for row in rows],
                        lines,
                        name,
                        dtype,
                        defaults[name],
                    )
                    for name, dtype in spec.items()
                }
        except (csv.Error, ValueError, OverflowError) as error:
            text, line = str(error), reader.line_num
            if isinstance(error, UnicodeDecodeError):
                # The line has not come to the reader, which counts those that have.
                text, line = f"{text}: write it as UTF-8 text", line + 1
            where = "" if text.startswith("line ") else f"line {line}: "
            raise ValueError(f"{path}: {where}{text}") from None


def _rows(
    reader: Any, width: int, of_empty_line: list[str]
) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Chunks of rows, each with the number of its last line. Lines of no row are passed over."""
    rows: list[list[str]] = []
    lines: list[int] = []
    for row in reader:
        row = row or of_empty_line
        if not row:
            continue
        if len(row) != width:
            raise ValueError(f"{len(row)} fields, and the header has {width}")
        rows.append(row)
        lines.append(reader.line_num)
        if len(rows) == _CHUNK:
            yield rows, lines
            rows, lines = [], []
    if rows:
        yield rows, lines


def _column(
    texts: list[str], lines: list[int], name: str, dtype: tf.DType, default: Optional[str]
) -> np.ndarray:
    if dtype == tf.string:
        return np.array([(text or default or "").encode() for text in texts], object)
    if default is not None:
        texts = [text or default for text in texts]
    convert = _integers if dtype.is_integer else _floats
    try:
        return convert(texts, dtype)
    except (ValueError, OverflowError):
        for text, line in zip(texts, lines):
            try:
                convert([text], dtype)
            except (ValueError, OverflowError):
                raise ValueError(
                    f"line {line}: column {name!r} is {text!r}, which is no {dtype.name}"
                    + ("" if text else "; give a default: columns={'" + name + "': 0}")
                ) from None
        raise


def _floats(texts: list[str], dtype: tf.DType) -> np.ndarray:
    # NumPy itself reads text as its own types only, of which bfloat16 is none.
    own = dtype.as_numpy_dtype if np.dtype(dtype.as_numpy_dtype).kind == "f" else np.float32
    return _parsed(texts, own).astype(dtype.as_numpy_dtype)


def _integers(texts: list[str], dtype: tf.DType) -> np.ndarray:
    """Raises ValueError for what is no integer, and OverflowError for what is out of range."""
    wide = np.uint64 if dtype == tf.uint64 else np.int64
    numbers = _parsed(texts, wide)
    if dtype == tf.uint64 and any(text.strip().startswith("-") for text in texts):
        raise OverflowError  # NumPy would wrap it around
    if numbers.size and not (dtype.min <= numbers.min() and numbers.max() <= dtype.max):
        raise OverflowError
    return numbers.astype(dtype.as_numpy_dtype)


def _parsed(texts: list[str], kind: Any) -> np.ndarray:
    # NumPy takes 1_000 for 1000, as Python's source does. Other readers of CSV see no number.
    if "_" in "".join(texts):
        raise ValueError
    return np.array(texts, str).astype(kind)
