"""Reading a recording: which recorders it has, which offsets, and the rows between two of them.

    recording = Recording("/var/lib/sbus/recording")
    for recorder in recording.recorders():
        table = recording.snapshot(recorder).table("messages")
        for piece in table.plan(table.earliest, table.end):
            for batch in read(piece):
                ...

A `Snapshot` is one reading of a manifest: whatever is planned with it shows every row once, and
its files stay where they are for the recorder's grace period. A `Piece` is a part of one file; it
can be pickled, and read wherever the directory is. Rows within one piece come in the order of their
offsets; pieces of one plan may interleave where a clock was set back.

Knows nothing of buses or of Spark, and writes nothing.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sbus.errors import ConfigurationError, SbusError
from sbus.pipeline import commit_index, manifest
from sbus.pipeline.arrow_columns import numbers, of_flags
from sbus.pipeline.manifest import FileEntry, Manifest
from sbus.pipeline.schemas import TABLES

_PARQUET_BATCH_ROWS = 65_536
_BATCH_BYTES = 16 * 1024 * 1024
"""What a batch of a Parquet file takes, about; payloads may be large."""


class RecordingDamaged(SbusError):
    """A file does not hold what the index or the manifest says; the text names it."""


class RecordingChanged(SbusError):
    """A file has been deleted since it was planned to read it: plan again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of one file from offset `first` to `end` (exclusive), those of them in it."""

    directory: str
    path: str
    kind: str
    table: str
    file_first: int
    """The first offset in the file, whatever part of it this is."""
    first: int
    end: int
    rows: int


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table as one manifest, and the index of the segment being written, have it. There are rows
    at the offsets from `earliest` to `end` (exclusive), each in one of the files."""

    directory: str
    name: str
    earliest: int
    end: int
    files: tuple[FileEntry, ...]

    def plan(self, first: int, end: int) -> list[Piece]:
        """What has to be read for the rows from `first` to `end`, as far as there are any."""
        pieces = []
        for file in self.files:
            spans = [(max(a, first), min(b, end)) for a, b in file.spans]
            rows = sum(max(0, b - a) for a, b in spans)
            if rows:
                low = min(a for a, b in spans if a < b)
                high = max(b for a, b in spans if a < b)
                pieces.append(
                    Piece(
                        self.directory, file.path, file.kind, self.name, file.first, low, high, rows
                    )
                )
        return pieces

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset whose row is not older, `end` if there is none.

        Clocks may be set back: then rows behind it may be older, and none before it is as new.
        """
        candidates = [
            file
            for file in self.files
            if file.max_timestamp_us is None or file.max_timestamp_us >= timestamp_us
        ]
        best = self.end
        for file in candidates:
            if file.first < best:
                best = min(best, self._offset_in(file, timestamp_us))
        return best

    def _offset_in(self, file: FileEntry, timestamp_us: int) -> int:
        for piece in self.plan(file.first, self.end):
            if piece.path != file.path:
                continue
            for batch in read(piece, ["offset", "timestamp"]):
                newer = numbers(batch["timestamp"]) >= timestamp_us
                if newer.any():
                    return int(numbers(batch["offset"])[newer].min())
        return self.end


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of one recorder's manifest."""

    directory: str
    manifest: Manifest

    def table(self, name: str) -> TableSnapshot:
        """`messages`, `clients` or `events`; with nothing in it where nothing was recorded."""
        listed = self.manifest.tables.get(name)
        if listed is None:
            return TableSnapshot(self.directory, name, 0, 0, ())
        files = tuple(
            file if file.end is not None else _measured(Path(self.directory), file)
            for file in listed.files
        )
        ends = [file.end for file in files if file.end is not None]
        end = max([listed.earliest, *ends])
        return TableSnapshot(self.directory, name, listed.earliest, end, files)


class Recording:
    """The recording in a directory. Raises ConfigurationError where there is no such directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        if not self.directory.is_dir():
            raise ConfigurationError(f"{self.directory} is no directory: where is the recording?")

    def recorders(self) -> list[str]:
        """Those who recorded here, in alphabetical order."""
        return sorted(path.parent.name for path in self.directory.glob(f"*/{manifest.NAME}"))

    def snapshot(self, recorder: str) -> Snapshot:
        """What there is of this recorder now. Raises ConfigurationError."""
        return Snapshot(str(self.directory), manifest.load(self.directory, recorder))


def index_path(segment: Path) -> Path:
    return segment.with_suffix(".index")


def committed_entries(segment: Path) -> list[commit_index.Entry]:
    """What counts of a segment now, and will after any crash: an entry can be seen before it is on
    disk, so it is brought there."""
    with index_path(segment).open("rb") as file:
        index = file.read()
        os.fdatasync(file.fileno())
    with segment.open("rb") as file:
        return commit_index.committed(
            index, lambda start, end: os.pread(file.fileno(), end - start, start)
        )


def _measured(directory: Path, file: FileEntry) -> FileEntry:
    """The entry of the segment that is being written, with what of it counts now."""
    path = directory / file.path
    try:
        entries = committed_entries(path)
    except FileNotFoundError as error:
        raise RecordingChanged(f"{path} has been deleted since the manifest was read") from error
    return summarise(file, entries)


def summarise(file: FileEntry, entries: Sequence[commit_index.Entry]) -> FileEntry:
    """What a segment holds, of which these entries count. How old its oldest row is only a look at
    all of them would tell."""
    end = entries[-1].end_offset if entries else file.first
    return FileEntry(
        path=file.path,
        kind="hot",
        first=file.first,
        end=end,
        rows=end - file.first,
        bytes=entries[-1].end_byte if entries else 0,
        min_timestamp_us=None,
        max_timestamp_us=max((entry.newest_us for entry in entries), default=None),
    )


def read(piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, with these columns of its table, or all, in the table's order.

    Raises RecordingChanged when the file has gone, RecordingDamaged for what is not as written.
    """
    schema = TABLES[piece.table]
    names = schema.names if columns is None else [n for n in schema.names if n in set(columns)]
    path = Path(piece.directory) / piece.path
    try:
        hot = piece.kind == "hot"
        batches = _read_hot(path, piece) if hot else _read_parquet(path, piece, names)
        for batch in batches:
            wanted = _between(batch, piece.first, piece.end)
            if wanted.num_rows:
                yield wanted.select(names).cast(pa.schema([schema.field(n) for n in names]))
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
        groups = _groups(file, piece)
        yield from file.iter_batches(
            _batch_rows(file.metadata, groups), groups, columns=list(needed), use_threads=False
        )


def _groups(file: pq.ParquetFile, piece: Piece) -> list[int]:
    """The row groups that may hold rows of the piece."""
    column = file.schema_arrow.get_field_index("offset")
    found = []
    for number in range(file.num_row_groups):
        known = file.metadata.row_group(number).column(column).statistics
        if (
            known is None
            or not known.has_min_max
            or (known.min < piece.end and piece.first <= known.max)
        ):
            found.append(number)
    return found


def _batch_rows(metadata: pq.FileMetaData, groups: Sequence[int]) -> int:
    """So many rows are about `_BATCH_BYTES`, where they are of about the same size."""
    size: int = sum(metadata.row_group(number).total_byte_size for number in groups)
    rows: int = sum(metadata.row_group(number).num_rows for number in groups)
    return max(1, min(_PARQUET_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size)))


def _read_hot(path: Path, piece: Piece) -> Iterator[pa.RecordBatch]:
    entries = commit_index.parse(index_path(path).read_bytes())
    with path.open("rb") as file:
        schema = pa.ipc.read_schema(file)
        for first, start_byte, entry in commit_index.extents(entries, piece.file_first):
            if first >= piece.end:
                return
            if entry.end_offset <= piece.first:
                continue
            file.seek(start_byte)
            data = file.read(entry.end_byte - start_byte)
            if not commit_index.is_sound(entry, data):
                raise RecordingDamaged(
                    f"{path}: bytes {start_byte} to {entry.end_byte} are not what was written"
                )
            yield _decode(data, schema)


def _decode(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in these bytes of a stream, which may begin with the schema."""
    source = pa.BufferReader(data)
    message = pa.ipc.read_message(source)
    if message.type == "schema":
        message = pa.ipc.read_message(source)
    return pa.ipc.read_record_batch(message, schema)


def _between(batch: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """The rows with these offsets."""
    offsets = numbers(batch["offset"])
    wanted = (offsets >= first) & (offsets < end)
    return batch if wanted.all() else batch.filter(of_flags(wanted))
