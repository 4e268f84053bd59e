"""Other programs that read Delta tables, each with its own code for the format and for Parquet."""

import functools
from collections.abc import Callable
from pathlib import Path

import duckdb
import duckdb_extension_delta
import polars
import pyarrow as pa
from deltalake import DeltaTable

Program = Callable[[str], pa.Table]
"""All rows and columns of the table in a directory."""


def deltalake(directory: str) -> pa.Table:
    return DeltaTable(directory).to_pyarrow_table()


def by_polars(directory: str) -> pa.Table:
    return polars.scan_delta(directory).collect().to_arrow()


def by_duckdb(directory: str) -> pa.Table:
    with _database().cursor() as cursor:
        return cursor.execute("FROM delta_scan(?)", [directory]).to_arrow_table()


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    """With its extension for Delta, which otherwise it fetches from its makers' server."""
    package = Path(duckdb_extension_delta.__file__).parent
    (extension,) = package.rglob("delta.duckdb_extension")
    database = duckdb.connect()
    database.load_extension(str(extension))
    return database


PROGRAMS: tuple[Program, ...] = (deltalake, by_polars, by_duckdb)
