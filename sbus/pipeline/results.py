"""A job's result: a table on the terminal, or one file.

Results are small next to what they are made of, and end in this process; tables that are not, and
those that should stand, are for `deploy/spark/`. A file is written beside its name and renamed, so
it is there whole or not at all. Knows nothing of what the columns mean.
"""

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyspark.sql import DataFrame

from sbus.cli.terminal.screen import Screen
from sbus.cli.terminal.tables import Column, layout, text
from sbus.errors import ConfigurationError

UNKNOWN = "-"


def write_parquet(table: pa.Table, path: Path) -> None:
    pyarrow.parquet.write_table(table, path)


def write_csv(table: pa.Table, path: Path) -> None:
    """Lists as JSON would be another format; here they are words with a blank between."""
    for number, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            words = [None if cell is None else " ".join(cell) for cell in table[number].to_pylist()]
            table = table.set_column(number, field.name, pa.array(words, pa.string()))
    pyarrow.csv.write_csv(table, path)


def write_json(table: pa.Table, path: Path) -> None:
    """An object a line; times in ISO 8601, numbers exact."""
    import msgspec

    lines = map(msgspec.json.encode, table.to_pylist())
    path.write_bytes(b"".join(line + b"\n" for line in lines))


FORMATS: dict[str, Callable[[pa.Table, Path], None]] = {
    ".parquet": write_parquet,
    ".csv": write_csv,
    ".json": write_json,
}


def check_output(path: Path) -> Path:
    """Before anything is computed: the path can be written to, and its ending says how. Raises
    ConfigurationError."""
    if path.suffix not in FORMATS:
        raise ConfigurationError(f"--out {path}: its name must end in one of {', '.join(FORMATS)}")
    return check_folder(path)


def check_folder(path: Path) -> Path:
    if not path.absolute().parent.is_dir():
        raise ConfigurationError(f"--out {path}: there is no directory {path.absolute().parent}")
    if path.is_dir():
        raise ConfigurationError(f"--out {path} is a directory; name a file")
    return path


def write_result(result: DataFrame, path: Path) -> int:
    """Returns how many rows."""
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
    """Print the first rows as a table, and how many there are beyond them, if any."""
    shown = result.limit(rows_max + 1).toArrow()
    rows = shown.slice(0, rows_max).to_pylist()
    columns = [_column(field) for field in shown.schema]
    screen = Screen()
    if not rows:
        screen.show([text("nothing")])
        return
    cells = [[_cell(value) for value in row.values()] for row in rows]
    screen.show(layout(columns, cells, screen.width))
    if shown.num_rows > rows_max and screen.is_terminal:
        screen.show([text(f"and more than these {rows_max}: --rows, or --out FILE", "dim")])


def _column(field: pa.Field) -> Column:
    is_text = pa.types.is_string(field.type) or pa.types.is_list(field.type)
    return Column(field.name.upper().replace("_", "-"), right=not is_text, flexible=is_text)


def _cell(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S")
    if isinstance(value, list):
        return ",".join(value)
    return str(value)
