"""A job's result: a table on the terminal, or one file.

Results are small next to the recording, and are collected in this process; `deploy/spark/` is for
large or standing tables. A file is replaced atomically.
"""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyspark.sql import DataFrame

from sbus.cli.terminal.screen import Screen
from sbus.cli.terminal.tables import Column, layout, text
from sbus.errors import ConfigurationError


def _write_csv(table: pa.Table, path: Path) -> None:
    """CSV has no lists; their items are separated by spaces."""
    for number, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            cells = [None if cell is None else " ".join(cell) for cell in table[number].to_pylist()]
            table = table.set_column(number, field.name, pa.array(cells, pa.string()))
    pyarrow.csv.write_csv(table, path)


def _write_json(table: pa.Table, path: Path) -> None:
    """One object per line; times in ISO 8601."""
    lines = map(msgspec.json.encode, table.to_pylist())
    path.write_bytes(b"".join(line + b"\n" for line in lines))


FORMATS: dict[str, Callable[[pa.Table, Path], None]] = {
    ".parquet": pyarrow.parquet.write_table,
    ".csv": _write_csv,
    ".json": _write_json,
}


def check_output(path: Path) -> None:
    """Raises ConfigurationError if a result cannot be written there."""
    if path.suffix not in FORMATS:
        raise ConfigurationError(f"--out {path}: its name must end in one of {', '.join(FORMATS)}")
    check_folder(path)


def check_folder(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"--out {path}: there is no directory {path.absolute().parent}")
    if path.is_dir():
        raise ConfigurationError(f"--out {path} is a directory; name a file")


def write_result(result: DataFrame, path: Path) -> int:
    """Returns the number of rows."""
    table = result.toArrow()
    replace_file(path, lambda new: FORMATS[path.suffix](table, new))
    return len(table)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def show_result(result: DataFrame, rows_max: int) -> None:
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
