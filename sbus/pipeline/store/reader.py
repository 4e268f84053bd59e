"""Reading a recording: its recorders, the offsets of a table, and the rows between two of them.

    recording = Recording("/var/lib/sbus/recording")
    for recorder in recording.recorders():
        table = recording.snapshot(recorder).table("messages")
        for piece in table.plan(table.earliest, table.end):
            for batch in read(piece):
                ...

A `Snapshot` is one reading of a manifest. What is planned with it shows every row once, and its
files remain for the recorder's grace period. A `Piece` is a part of one file; it can be pickled,
and read by any process that has the directory. The rows of a piece are in the order of their
offsets. Pieces of one plan may interleave where a clock was set back.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sbus.errors import ConfigurationError, SbusError
from sbus.pipeline.store import manifest, segment_file
from sbus.pipeline.store.arrow_columns import numbers, of_flags
from sbus.pipeline.store.manifest import FileEntry, Manifest
from sbus.pipeline.store.schemas import TABLES
from sbus.pipeline.store.segment_file import RecordingDamaged, index_path

_PARQUET_BATCH_ROWS = 65_536
_BATCH_BYTES = 16 * 1024 * 1024


class RecordingChanged(SbusError):
    """A file has been deleted since its reading was planned: plan again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one file from offset `first` to `end` (exclusive)."""

    directory: str
    path: str
    kind: str
    table: str
    file_first: int
    """The first offset in the file, whichever part of it this is."""
    first: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table according to one manifest and the index of the file being written. Each row from
    offset `earliest` to `end` (exclusive) is in one of the files."""

    directory: str
    name: str
    earliest: int
    end: int
    files: tuple[FileEntry, ...]

    def plan(self, first: int, end: int) -> list[Piece]:
        """The pieces with the existing rows from `first` to `end`."""
        pieces = (self._piece(file, first, end) for file in self.files)
        return [piece for piece in pieces if piece is not None]

    def _piece(self, file: FileEntry, first: int, end: int) -> Piece | None:
        spans = [(max(a, first), min(b, end)) for a, b in file.spans]
        spans = [(a, b) for a, b in spans if a < b]
        if not spans:
            return None
        return Piece(
            *(self.directory, file.path, file.kind, self.name, file.first),
            first=min(a for a, _ in spans),
            end=max(b for _, b in spans),
            rows=sum(b - a for a, b in spans),
        )

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset whose row is not older than this, or `end`.

        Where a clock was set back, later rows may be older; no earlier row is as new.
        """
        found = self.end
        for file in self.files:
            newest_us = file.max_timestamp_us
            if file.first < found and (newest_us is None or newest_us >= timestamp_us):
                found = min(found, self._offset_in(file, timestamp_us))
        return found

    def _offset_in(self, file: FileEntry, timestamp_us: int) -> int:
        piece = self._piece(file, file.first, self.end)
        for batch in read(piece, ["offset", "timestamp"]) if piece is not None else ():
            is_newer = numbers(batch["timestamp"]) >= timestamp_us
            if is_newer.any():
                return int(numbers(batch["offset"])[is_newer].min())
        return self.end


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of one recorder's manifest."""

    directory: str
    manifest: Manifest

    def table(self, name: str) -> TableSnapshot:
        """`messages`, `clients` or `events`; it is empty if nothing was recorded."""
        listed = self.manifest.tables.get(name)
        if listed is None:
            return TableSnapshot(self.directory, name, 0, 0, ())
        files = tuple(
            file if file.end is not None else self._measure(file) for file in listed.files
        )
        end = max([listed.earliest, *(file.end for file in files if file.end is not None)])
        return TableSnapshot(self.directory, name, listed.earliest, end, files)

    def _measure(self, file: FileEntry) -> FileEntry:
        try:
            return segment_file.measure(Path(self.directory), file)
        except FileNotFoundError as error:
            path = Path(self.directory) / file.path
            raise RecordingChanged(
                f"{path} has been deleted since the manifest was read"
            ) from error


class Recording:
    """The recording in a directory. Raises ConfigurationError if there is no such directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        if not self.directory.is_dir():
            raise ConfigurationError(f"{self.directory} is no directory: where is the recording?")

    def check(self) -> None:
        """Raises ConfigurationError if nothing was recorded in the directory."""
        if self.recorders():
            return
        if (self.directory / manifest.NAME).exists():
            raise ConfigurationError(
                f"{self.directory} is one recorder's part of a recording: "
                f"give {self.directory.parent}"
            )
        raise ConfigurationError(
            f"{self.directory} holds no recording: no */{manifest.NAME}; `sbusctl record` makes one"
        )

    def recorders(self) -> list[str]:
        """The names of all recorders, in alphabetical order."""
        return sorted(path.parent.name for path in self.directory.glob(f"*/{manifest.NAME}"))

    def snapshot(self, recorder: str) -> Snapshot:
        """The recorder's manifest as it is now. Raises ConfigurationError."""
        return Snapshot(str(self.directory), manifest.load(self.directory, recorder))


Tables = dict[str, TableSnapshot]
"""One reading of a recording: a table of each recorder, by its qualified name."""


@dataclass(frozen=True, slots=True)
class _Cached:
    """A table, and the states of the files that describe it, taken just before it was read."""

    states: dict[Path, tuple[int, int, int] | None]
    qualified_name: str
    table: TableSnapshot


class TableCache:
    """The table `name` of all recorders, read again where a file has changed.

    A stream asks for it a hundred times a second. The manifest and the index of the file being
    written are read only if one of them has another number, time of change or size than before.
    """

    def __init__(self, directory: str, name: str) -> None:
        self._directory = directory
        self._name = name
        self._cached: dict[str, _Cached] = {}

    def tables(self) -> Tables:
        """The tables as they are now. Raises ConfigurationError if there is no such directory."""
        recording = Recording(self._directory)
        self._cached = {name: self._load(recording, name) for name in recording.recorders()}
        return {cached.qualified_name: cached.table for cached in self._cached.values()}

    def _load(self, recording: Recording, recorder: str) -> _Cached:
        cached = self._cached.get(recorder)
        if cached is not None and all(_state(path) == was for path, was in cached.states.items()):
            return cached
        listing = recording.directory / recorder / manifest.NAME
        states = {listing: _state(listing)}
        snapshot = recording.snapshot(recorder)
        listed = snapshot.manifest.tables.get(self._name)
        for file in listed.files if listed is not None else ():
            if file.end is None:
                index = index_path(recording.directory / file.path)
                states[index] = _state(index)
        return _Cached(states, snapshot.manifest.qualified_name, snapshot.table(self._name))


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


# -- rows ------------------------------------------------------------------------------------------
def read(piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a piece with these columns, or all, in the order of the table. A column that was
    added to the table after the file was written is null.

    Raises RecordingChanged if the file has gone, RecordingDamaged if it is not as it was written.
    """
    schema = TABLES[piece.table]
    if columns is not None:
        schema = pa.schema([field for field in schema if field.name in set(columns)])
    path = Path(piece.directory) / piece.path
    if piece.kind == "hot":
        batches = segment_file.read_batches(path, piece.file_first, piece.first, piece.end)
    else:
        batches = _read_parquet(path, piece, schema.names)
    try:
        for batch in batches:
            wanted = _between(batch, piece.first, piece.end)
            if wanted.num_rows:
                yield _with_columns(wanted, schema)
    except FileNotFoundError as error:
        raise RecordingChanged(
            f"{path} is not there: it has been deleted since the reading was planned, or this host "
            "does not have the directory"
        ) from error
    except pa.ArrowException as error:
        raise RecordingDamaged(f"{path}: {error}") from error


def _read_parquet(path: Path, piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    needed = names if "offset" in names else [*names, "offset"]
    with pq.ParquetFile(path) as file:
        groups = [number for number in range(file.num_row_groups) if _may_hold(file, number, piece)]
        yield from file.iter_batches(
            _batch_rows(file.metadata, groups), groups, columns=list(needed), use_threads=False
        )


def _may_hold(file: pq.ParquetFile, group: int, piece: Piece) -> bool:
    """Whether this row group may hold rows of the piece."""
    column = file.schema_arrow.get_field_index("offset")
    known = file.metadata.row_group(group).column(column).statistics
    if known is None or not known.has_min_max:
        return True
    return bool(known.min < piece.end and piece.first <= known.max)


def _batch_rows(metadata: pq.FileMetaData, groups: Sequence[int]) -> int:
    """The number of rows that make about `_BATCH_BYTES`, if all are of about the same size."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in groups)
    rows: int = sum(metadata.row_group(number).num_rows for number in groups)
    return max(1, min(_PARQUET_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size)))


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        batch[field.name].cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _between(batch: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """The rows with offsets from `first` to `end`."""
    offsets = numbers(batch["offset"])
    wanted = (offsets >= first) & (offsets < end)
    return batch if wanted.all() else batch.filter(of_flags(wanted))
