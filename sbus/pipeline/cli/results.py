"""Results: a job's as a table on the terminal, or any rows as one file.

A job's result is small next to the recording, and is collected in this process; `deploy/spark/` is
for large or standing tables. A file is replaced atomically.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from sbus.cli.terminal.screen import Screen
from sbus.cli.terminal.tables import Column, layout, text
from sbus.errors import ConfigurationError
from sbus.protocol.text import to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for batch in batches:
            file.write_batch(batch)


def _write_csv(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    with pyarrow.csv.CSVWriter(path, _flat(pa.RecordBatch.from_pylist([], schema)).schema) as file:
        for batch in batches:
            file.write_batch(_flat(batch))


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With text in every column that has lists or bytes."""
    columns = [
        pa.array(map(_as_text, column.to_pylist()), pa.string())
        if pa.types.is_list(column.type) or pa.types.is_binary(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _as_text(value: Sequence[str] | bytes | None) -> str | None:
    """The items of a list, with spaces between them; bytes as keys are written."""
    if value is None:
        return None
    return to_text(value) if isinstance(value, bytes) else " ".join(value)


def _write_json(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    """One object per line; times in ISO 8601, bytes as keys are written."""
    with path.open("wb") as file:
        for batch in batches:
            for row in batch.to_pylist():
                cells = {k: to_text(v) if isinstance(v, bytes) else v for k, v in row.items()}
                file.write(msgspec.json.encode(cells) + b"\n")


FORMATS = {".parquet": _write_parquet, ".csv": _write_csv, ".json": _write_json}


def check_output(path: Path) -> None:
    """Raises ConfigurationError if a result cannot be written there."""
    if path.suffix not in FORMATS:
        raise ConfigurationError(f"{path}: its name must end in one of {', '.join(FORMATS)}")
    check_folder(path)


def check_folder(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"{path}: there is no directory {path.absolute().parent}")
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory; name a file")


def write_result(result: "DataFrame", path: Path) -> int:
    """Returns the number of rows."""
    table = result.toArrow()
    write_rows(table.to_batches(), table.schema, path)
    return len(table)


def write_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> None:
    replace_file(path, lambda new: FORMATS[path.suffix](batches, schema, new))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def show_result(result: "DataFrame", rows_max: int) -> None:
    """Print the first rows as a table, and on a terminal whether there are more."""
    shown = result.limit(rows_max + 1).toArrow()
    rows = shown.slice(0, rows_max).to_pylist()
    screen = Screen()
    if not rows:
        screen.show([text("nothing")])
        return
    cells = [[_cell(value) for value in row.values()] for row in rows]
    screen.show(layout([_column(field) for field in shown.schema], cells, screen.width))
    if shown.num_rows > rows_max and screen.is_terminal:
        screen.show([text(f"and more than these {rows_max}: --rows, or --out FILE", "dim")])


def _column(field: pa.Field) -> Column:
    is_text = pa.types.is_string(field.type) or pa.types.is_list(field.type)
    return Column(field.name.upper().replace("_", "-"), right=not is_text, flexible=is_text)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S")
    if isinstance(value, list):
        return ",".join(value)
    return str(value)
