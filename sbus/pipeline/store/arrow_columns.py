"""Arrow columns from Python values and back, without `pyarrow.array` and `to_numpy`.

Their first call imports pandas where it is installed, which takes half a second or more, and a
recorder receives nothing meanwhile. Using the buffers directly is no slower.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def of_bytes(values: Sequence[bytes], kind: pa.DataType, known: Any = None) -> pa.Array:
    """Strings (in UTF-8) or binary values, less than 2 GiB in all. `known`, an array of bool, says
    which of them are not null; None: all."""
    count = len(values)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, count), out=offsets[1:])
    buffers = [_bits(known), pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, count, buffers)


def repeated(text: str, count: int) -> pa.Array:
    """The same string in every row."""
    value = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(value)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(value * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def of_numbers(values: Any, kind: pa.DataType, known: Any = None) -> pa.Array:
    """Whole numbers or timestamps from a numpy array of the same width; `known` as above."""
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(data), [_bits(known), pa.py_buffer(data)])


def of_flags(values: Any, known: Any = None) -> pa.Array:
    """A column of bool; `known` as above."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bits(known), _bits(values)])


def of_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Any of these kinds, from Python values; None becomes null."""
    some_unknown = None in values
    known = (
        np.fromiter((v is not None for v in values), bool, len(values)) if some_unknown else None
    )
    if pa.types.is_string(kind):
        return of_bytes([(v or "").encode() for v in values], kind, known)
    if pa.types.is_boolean(kind):
        return of_flags(np.fromiter((bool(v) for v in values), bool, len(values)), known)
    width = np.int32 if kind.bit_width == 32 else np.int64
    return of_numbers(np.fromiter((v or 0 for v in values), width, len(values)), kind, known)


def numbers(column: pa.Array) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The values of a column of 64-bit numbers or timestamps without nulls."""
    values = np.frombuffer(column.buffers()[1], np.int64)
    return values[column.offset : column.offset + len(column)]


def with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, null where the batch lacks one."""
    present = set(batch.schema.names)
    arrays = [
        batch[field.name].cast(field.type)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _bits(flags: Any) -> pa.Buffer | None:
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))
