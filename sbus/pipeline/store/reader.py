"""Reading a recording: the offsets of a table, and the rows between two of them.

    for table in Recording("/var/lib/sbus/recording").tables("messages").values():
        for piece in table.plan(table.earliest, table.end):
            for batch in read(piece):
                ...

A `TableSnapshot` has every row of a recorder once. The segment files are listed first, and then the
table of sealed rows is asked what it has; rows that are in both come from there. Nothing else need
be known: a segment file that is sealed in between is skipped, and one that begins in between is not
seen. Files remain for the recorder's grace period.

A directory may also have one recording for each host, each in a folder `host=NAME`, as partitioned
Parquet would. Then NAME is the host of all rows in there. A URI stands for sealed rows alone.
"""

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbus.errors import ConfigurationError, SbusError
from sbus.pipeline.store import recorder_file, segment_file
from sbus.pipeline.store.recorder_file import RecorderFile, recorder_of
from sbus.pipeline.store.schemas import TABLES, conform
from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.segment_file import (
    RecordingDamaged,
    first_offset,
    index_path,
    segment_files,
)
from sbus.pipeline.store.stored_file import Piece, StoredFile, file_system

HOST_FOLDER: Final = "host="
_PARQUET_BATCH_ROWS = 65_536
_BATCH_BYTES = 16 * 1024 * 1024
_REMOTE_SECONDS = 1.0
"""How old what is known of a table at a URI may be."""


class RecordingChanged(SbusError):
    """A file has been deleted since its reading was planned: plan again."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table of one recorder. Each row from offset `earliest` to `end` (exclusive) is in one of
    the files, which are in the order of their first offsets."""

    earliest: int
    end: int
    files: tuple[StoredFile, ...]

    def plan(self, first: int, end: int) -> list[Piece]:
        """The pieces with the existing rows from `first` to `end`."""
        pieces = (file.piece(first, end) for file in self.files)
        return [piece for piece in pieces if piece is not None]

    def offset_at(self, timestamp_us: int) -> int:
        """The first offset whose row is not older than this, or `end`.

        Where a clock was set back, later rows may be older; no earlier row is as new.
        """
        found = self.end
        for file in self.files:
            is_old = file.newest_us is not None and file.newest_us < timestamp_us
            if file.first < found and not is_old:
                found = min(found, self._offset_in(file, timestamp_us))
        return found

    def timestamp_us(self, offset: int) -> int:
        """Of the row with this offset, or the next one that is there; there is one."""
        batches = (b for piece in self.plan(offset, self.end) for b in read(piece, ["timestamp"]))
        oldest: int = pc.min(next(batches)["timestamp"].cast(pa.int64())).as_py()
        return oldest

    def _offset_in(self, file: StoredFile, timestamp_us: int) -> int:
        piece = file.piece(file.first, file.end)
        found = self.end
        for batch in read(piece, ["offset", "timestamp"]) if piece is not None else ():
            is_newer = batch["timestamp"].cast(pa.int64()).to_numpy() >= timestamp_us
            if is_newer.any():
                found = min(found, int(batch["offset"].to_numpy()[is_newer].min()))
        return found


Tables = dict[str, TableSnapshot]
"""The table of each recorder, by its name."""


class Recording:
    """The recording in a directory, or those of its hosts, or the part at a URI that is sealed.

    Raises ConfigurationError if there is no such directory, or it has both.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.root = os.fspath(location)
        self.directory: Path | None = None
        if "://" not in self.root:
            self.directory = Path(self.root).absolute()
            self.root = str(self.directory)
            if not self.directory.is_dir():
                raise ConfigurationError(
                    f"{self.directory} is no directory: where is the recording?"
                )
        self._by_host = self._find_hosts()

    @property
    def is_by_host(self) -> bool:
        """Whether it has a recording for each host."""
        return bool(self._by_host)

    def check(self) -> None:
        """Raises ConfigurationError if nothing was recorded there, or for one of the hosts."""
        if self._by_host:
            for recording in self._by_host.values():
                recording.check()
            return
        if self._recorder_files() or any(SealedTable(self.root, name).exists for name in TABLES):
            return
        if any(Path(self.root).glob(recorder_file.PATTERN)):
            raise ConfigurationError(
                f"{self.root} is one recorder's part of a recording: give {Path(self.root).parent}"
            )
        raise ConfigurationError(
            f"{self.root} holds no recording: no */{recorder_file.PATTERN}; "
            "`sbusctl record` makes one"
        )

    def tables(self, name: str) -> Tables:
        """The table `name` as it is now. Raises ConfigurationError, SealedTableFailed."""
        if self._by_host:
            return self._tables_by_host(name)
        roots: dict[str, str] = {}
        files: dict[str, list[StoredFile]] = {}
        for recorder in self._recorder_files():
            roots[recorder.qualified_name] = recorder.table or self.root
            files[recorder.qualified_name] = self._hot_files(recorder, name)
        sealed = {root: SealedTable(root, name) for root in {self.root, *roots.values()}}
        for root, table in sealed.items():
            for file in table.files():
                if roots.setdefault(file.qualified_name, self.root) == root:
                    files.setdefault(file.qualified_name, []).append(file)
        return {
            recorder: _snapshot(sealed[roots[recorder]].end(recorder), files[recorder])
            for recorder in sorted(files)
        }

    def states(self, name: str) -> object:
        """Something that changes whenever a table does."""
        if self._by_host:
            return [(host, recording.states(name)) for host, recording in self._by_host.items()]
        remote = time.monotonic() // _REMOTE_SECONDS
        found: list[object] = []
        recorders = self._recorder_files()
        for root in {recorder.table or self.root for recorder in recorders} | {self.root}:
            found.append(remote if "://" in root else _state(Path(root, name, "_delta_log")))
        for file in recorders:
            assert self.directory is not None
            paths = segment_files(self.directory / file.recorder, name)
            found += [file.recorder, len(paths), *(_state(index_path(path)) for path in paths[-1:])]
        return found

    def _find_hosts(self) -> "dict[str, Recording]":
        if self.directory is None:
            return {}
        folders = sorted(self.directory.glob(f"{HOST_FOLDER}*"))
        found = {it.name.removeprefix(HOST_FOLDER): Recording(it) for it in folders}
        if found and (
            any((self.directory / name).exists() for name in TABLES)
            or any(it.is_by_host for it in found.values())
            or self._recorder_files()
        ):
            raise ConfigurationError(
                f"{self.directory} holds recordings of single hosts ({folders[0].name}) beside or "
                "above another recording: keep them in a directory of their own"
            )
        return found

    def _tables_by_host(self, name: str) -> Tables:
        found: Tables = {}
        for host, recording in self._by_host.items():
            for recorder, table in recording.tables(name).items():
                if recorder in found:
                    raise ConfigurationError(
                        f"{self.directory} has the recording of {recorder_of(recorder)} twice, "
                        f"once in {HOST_FOLDER}{host}: its rows would count twice"
                    )
                files = tuple(dataclasses.replace(file, host=host) for file in table.files)
                found[recorder] = dataclasses.replace(table, files=files)
        return found

    def _recorder_files(self) -> list[RecorderFile]:
        return [] if self.directory is None else recorder_file.load_all(self.directory)

    def _hot_files(self, recorder: RecorderFile, name: str) -> list[StoredFile]:
        assert self.directory is not None
        paths = segment_files(self.directory / recorder.recorder, name)
        following = [*map(first_offset, paths[1:]), None]
        files = []
        for path, end in zip(paths, following, strict=False):  # at first there is no path
            # A file that has gone since it was listed is sealed.
            with suppress(FileNotFoundError):
                files.append(_segment_file(path, name, recorder, end))
        return files


def _segment_file(path: Path, name: str, recorder: RecorderFile, end: int | None) -> StoredFile:
    """Up to `end`, or to where it is committed now. Raises FileNotFoundError."""
    first = first_offset(path)
    end = segment_file.committed_end(path) if end is None else end
    return StoredFile(
        path=str(path),
        table=name,
        is_sealed=False,
        recorder=recorder.recorder,
        incarnation=recorder.incarnation,
        host=recorder.host,
        bus=recorder.bus,
        first=first,
        end=end,
        rows=end - first,
        bytes=path.stat().st_size,
    )


def _snapshot(sealed_end: int, files: Sequence[StoredFile]) -> TableSnapshot:
    """The files that are sealed, and those of the hot log that are not."""
    needed = [file for file in files if file.is_sealed or file.first >= sealed_end]
    needed.sort(key=lambda file: file.first)
    return TableSnapshot(
        earliest=min([file.first for file in needed], default=sealed_end),
        end=max([file.end for file in needed], default=sealed_end),
        files=tuple(needed),
    )


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns, state.st_size


class TableCache:
    """The table `name` of all recorders, read again when something has changed.

    A stream asks for it a hundred times a second.
    """

    def __init__(self, location: str, name: str) -> None:
        self._location = location
        self._name = name
        self._state: object = None
        self._tables: Tables = {}

    def tables(self) -> Tables:
        """The tables as they are now. Raises ConfigurationError if there is no such directory."""
        recording = Recording(self._location)
        state = recording.states(self._name)
        if state != self._state:
            self._tables = recording.tables(self._name)
            self._state = state
        return self._tables


# -- rows ------------------------------------------------------------------------------------------
def read(piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a piece with these columns, or all, in the order of the table. A column that was
    added to the table after the file was written is null. Rows come in the order of their offsets,
    unless the file has been compacted.

    Raises RecordingChanged if the file has gone, RecordingDamaged if it is not as it was written.
    """
    schema = TABLES[piece.file.table]
    if columns is not None:
        schema = pa.schema([field for field in schema if field.name in set(columns)])
    path = piece.file.path
    try:
        batches = (
            _read_parquet(piece, schema.names)
            if piece.file.is_sealed
            else segment_file.read_batches(Path(path), piece.first, piece.end)
        )
        for batch in batches:
            wanted = _between(batch, piece.first, piece.end)
            if wanted.num_rows:
                yield conform(wanted, schema, piece.file.identity)
    except FileNotFoundError as error:
        raise RecordingChanged(
            f"{path} is not there: it has been deleted since the reading was planned, or this host "
            "does not have the directory"
        ) from error
    except pa.ArrowException as error:
        raise RecordingDamaged(f"{path}: {error}") from error


def _read_parquet(piece: Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    files, path = file_system(piece.file.path)
    with pq.ParquetFile(path, filesystem=files) as file:
        groups = [number for number in range(file.num_row_groups) if _may_hold(file, number, piece)]
        present = [n for n in file.schema_arrow.names if n in {*names, "offset"}]
        yield from file.iter_batches(
            _batch_rows(file.metadata, groups), groups, columns=present, use_threads=False
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


def _between(batch: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """The rows with offsets from `first` to `end`."""
    offsets = batch["offset"].to_numpy()
    wanted = (offsets >= first) & (offsets < end)
    return batch if wanted.all() else batch.filter(pa.array(wanted))
