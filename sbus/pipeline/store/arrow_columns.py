"""Arrow columns from Python values and back, without `pyarrow.array` and `to_numpy`.

Their first call imports pandas where it is installed, which takes half a second or more, and a
recorder receives nothing meanwhile. Using the buffers directly is no slower.
"""

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa


def of_bytes(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Strings (in UTF-8) or binary values, less than 2 GiB in all."""
    return of_joined(b"".join(values), list(map(len, values)), kind)


def of_joined(data: bytes, sizes: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """The same from values one after another; null where the size is None."""
    return _of_joined(data, kind, *_numbers(sizes, np.int32))


def repeated(text: str, count: int) -> pa.Array:
    """The same string in every row."""
    return of_values([text], pa.string(), [count])


def of_numbers(values: Any, kind: pa.DataType, known: Any = None) -> pa.Array:
    """Whole numbers or timestamps from a numpy array of the same width; `known` as above."""
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(data), [_bits(known), pa.py_buffer(data)])


def of_flags(values: Any, known: Any = None) -> pa.Array:
    """A column of bool; `known` as above."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bits(known), _bits(values)])


def of_values(
    values: Sequence[Any], kind: pa.DataType, counts: Sequence[int] | None = None
) -> pa.Array:
    """Any of these kinds, from Python values, each so many times; None becomes null."""
    times = 1 if counts is None else np.array(counts, np.int64)
    if pa.types.is_string(kind):
        texts = [None if value is None else value.encode() for value in values]
        sizes = [None if text is None else len(text) for text in texts]
        data = b"".join(
            (text or b"") * count for text, count in zip(texts, counts or repeat(1), strict=False)
        )
        return _of_joined(data, kind, *_numbers(sizes, np.int32, times))
    if pa.types.is_boolean(kind):
        return of_flags(*_numbers(values, bool, times))
    width = np.int32 if kind.bit_width == 32 else np.int64
    flat, known = _numbers(values, width, times)
    return of_numbers(flat, kind, known)


def _numbers(values: Sequence[int | None], width: Any, times: Any = 1) -> tuple[Any, Any]:
    """Arrays of the values, each so many times, and of which are known; None: all."""
    known = None
    if None in values:
        known = np.repeat([value is not None for value in values], times)
        values = [value or 0 for value in values]
    return np.repeat(np.fromiter(values, width, len(values)), times), known


def _of_joined(data: bytes, kind: pa.DataType, sizes: Any, known: Any) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    buffers = [_bits(known), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(sizes), buffers)


def numbers(column: pa.Array) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The values of a column of 64-bit numbers or timestamps without nulls."""
    values = np.frombuffer(column.buffers()[1], np.int64)
    return values[column.offset : column.offset + len(column)]


def _bits(flags: Any) -> pa.Buffer | None:
    return None if flags is None else pa.py_buffer(np.packbits(flags, bitorder="little"))
