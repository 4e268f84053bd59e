"""Segment files: the hot log of a table, one Arrow IPC stream with an index beside it each.

`append` writes a batch and brings it to disk, then writes its index entry and brings that to disk.
Only then is the batch committed. If a step fails because the disk is full, for example, both files
are cut back to the committed batches, so nothing torn remains and nothing committed is lost.
"""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sbus.errors import SbusError
from sbus.pipeline.store import commit_index
from sbus.unix.durable_files import sync

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""Most columns hold the same value in every row."""


class RecordingDamaged(SbusError):
    """A file does not hold what was written; the text names it."""


class SegmentFileWriter:
    """Writes a new segment file, whose first row has offset `first`."""

    def __init__(self, path: Path, first: int, schema: pa.Schema) -> None:
        self.path = path
        self.first = first
        self.end = first
        self.bytes = 0
        self._unwritten = io.BytesIO()
        self._stream = pa.ipc.new_stream(
            pa.PythonFile(self._unwritten, "w"), schema, options=_OPTIONS
        )
        self._index_bytes = 0
        # In this order every segment file that is found has an index.
        self._index = _create(index_path(path))
        try:
            self._data = _create(path)
        except BaseException:
            os.close(self._index)
            raise
        sync(path.parent)

    def append(self, batch: pa.RecordBatch) -> None:
        """Commit a batch with the next offsets; any thread may call this, one at a time.

        Raises OSError; then the batch is not committed, and no other can be.
        """
        self._stream.write_batch(batch)
        data = self._unwritten.getvalue()
        self._unwritten.seek(0)
        self._unwritten.truncate()
        end = self.end + batch.num_rows
        newest_us = pc.max(batch["timestamp"].cast(pa.int64())).as_py()
        entry = commit_index.seal(end, self.bytes + len(data), newest_us, data)
        try:
            _write(self._data, data)
            os.fdatasync(self._data)
            _write(self._index, entry.pack())
            os.fdatasync(self._index)
        except OSError:
            os.ftruncate(self._index, self._index_bytes)
            os.ftruncate(self._data, self.bytes)
            raise
        self.end = end
        self.bytes = entry.end_byte
        self._index_bytes += commit_index.ENTRY_BYTES

    def close(self) -> None:
        os.close(self._index)
        os.close(self._data)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def index_path(path: Path) -> Path:
    """The index of this segment file."""
    return path.with_suffix(".index")


def segment_files(home: Path, table: str) -> list[Path]:
    """The segment files of a table in the order of their offsets; the last is being written."""
    return sorted((home / "hot").glob(f"{table}-*.arrows"))


def segment_path(home: Path, table: str, first: int) -> Path:
    return home / "hot" / f"{table}-{first:020}.arrows"


def first_offset(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def delete(path: Path) -> None:
    """Delete a segment file and its index."""
    # In this order, an index never remains alone.
    index_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def recover(path: Path) -> int:
    """Cut off what a crash tore; returns the end of what was committed."""
    entries = _committed_entries(path)
    os.truncate(index_path(path), len(entries) * commit_index.ENTRY_BYTES)
    os.truncate(path, entries[-1].end_byte if entries else 0)
    return entries[-1].end_offset if entries else first_offset(path)


def committed_end(path: Path) -> int:
    """The end offset of what is committed now. Raises FileNotFoundError."""
    entries = _committed_entries(path)
    return entries[-1].end_offset if entries else first_offset(path)


def _committed_entries(path: Path) -> list[commit_index.Entry]:
    """The index entries that are valid now and after any crash: a reader can see an entry that is
    not on disk yet, so the index is brought to disk first. Raises FileNotFoundError."""
    with index_path(path).open("rb") as file:
        index = file.read()
        os.fdatasync(file.fileno())
    with path.open("rb") as file:
        return commit_index.committed(
            index, lambda start, end: os.pread(file.fileno(), end - start, start)
        )


def read_batches(
    path: Path, first: int, end: int, damaged: list[RecordingDamaged] | None = None
) -> Iterator[pa.RecordBatch]:
    """The batches with any of the offsets from `first` to `end`.

    Raises FileNotFoundError, RecordingDamaged. If `damaged` is given, batches that cannot be read
    are left out, and the reasons are added to it.
    """
    entries = commit_index.parse(index_path(path).read_bytes())
    with path.open("rb") as file:
        schema = pa.ipc.read_schema(file)
        for batch_first, start_byte, entry in commit_index.extents(entries, first_offset(path)):
            if batch_first >= end:
                return
            if entry.end_offset <= first:
                continue
            file.seek(start_byte)
            data = file.read(entry.end_byte - start_byte)
            if commit_index.is_sound(entry, data):
                yield _decode(data, schema)
                continue
            damage = RecordingDamaged(
                f"{path}: bytes {start_byte} to {entry.end_byte} are not what was written"
            )
            if damaged is None:
                raise damage
            damaged.append(damage)


def _decode(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in these bytes of a stream, which may begin with the schema."""
    source = pa.BufferReader(data)
    message = pa.ipc.read_message(source)
    if message.type == "schema":
        message = pa.ipc.read_message(source)
    return pa.ipc.read_record_batch(message, schema)
