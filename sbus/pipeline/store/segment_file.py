"""Segment files: the hot log of a table, one Arrow IPC stream with an index beside it each.

`append` writes a batch and brings it to disk, then writes its index entry and brings that to disk.
Only then is the batch committed. If a step fails because the disk is full, for example, both files
are cut back to the committed batches, so nothing torn remains and nothing committed is lost.
"""

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from sbus.errors import SbusError
from sbus.pipeline.store import commit_index
from sbus.pipeline.store.manifest import FileEntry, sync_directory
from sbus.pipeline.store.row_batches import RowBatch

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""Most columns hold the same value in every row."""


class RecordingDamaged(SbusError):
    """A file does not hold what the index or the manifest says; the text names it."""


class SegmentFileWriter:
    """Writes a new segment file, whose first row has offset `first`."""

    def __init__(self, path: Path, first: int, schema: pa.Schema) -> None:
        self.path = path
        self.first = first
        self.end = first
        self.bytes = 0
        self._oldest_us: int | None = None
        self._newest_us: int | None = None
        self._unwritten = io.BytesIO()
        self._stream = pa.ipc.new_stream(
            pa.PythonFile(self._unwritten, "w"), schema, options=_OPTIONS
        )
        self._index_bytes = 0
        self._data = _create(path)
        try:
            self._index = _create(index_path(path))
        except BaseException:
            os.close(self._data)
            raise
        sync_directory(path.parent)

    def append(self, batch: RowBatch) -> None:
        """Commit a batch with the next offsets; any thread may call this, one at a time.

        Raises OSError; then the batch is not committed, and no other can be.
        """
        rows, oldest_us, newest_us = batch
        self._stream.write_batch(rows)
        data = self._unwritten.getvalue()
        self._unwritten.seek(0)
        self._unwritten.truncate()
        end = self.end + rows.num_rows
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
        self._oldest_us = oldest_us if self._oldest_us is None else min(self._oldest_us, oldest_us)
        self._newest_us = newest_us if self._newest_us is None else max(self._newest_us, newest_us)

    def close(self) -> None:
        os.close(self._index)
        os.close(self._data)

    def entry(self, directory: Path, *, is_complete: bool) -> FileEntry:
        """What the manifest says of this file, which is complete or still being written."""
        return FileEntry(
            path=str(self.path.relative_to(directory)),
            kind="hot",
            first=self.first,
            end=self.end if is_complete else None,
            rows=self.end - self.first if is_complete else None,
            bytes=self.bytes if is_complete else None,
            min_timestamp_us=self._oldest_us if is_complete else None,
            max_timestamp_us=self._newest_us if is_complete else None,
        )


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def index_path(path: Path) -> Path:
    """The index of this segment file."""
    return path.with_suffix(".index")


def delete(path: Path) -> None:
    """Delete a file of a recording, and its index if it is a segment file, as far as they exist."""
    path.unlink(missing_ok=True)
    if path.suffix == ".arrows":
        index_path(path).unlink(missing_ok=True)


def recover(directory: Path, file: FileEntry) -> FileEntry:
    """Cut off what a crash tore, and return the entry of the file, which is now complete."""
    path = directory / file.path
    entries = _committed_entries(path)
    complete = _complete_entry(file, entries)
    assert complete.bytes is not None
    os.truncate(index_path(path), len(entries) * commit_index.ENTRY_BYTES)
    os.truncate(path, complete.bytes)
    return complete


def measure(directory: Path, file: FileEntry) -> FileEntry:
    """The entry of a file that is being written, with the batches that are committed now.

    Raises FileNotFoundError.
    """
    return _complete_entry(file, _committed_entries(directory / file.path))


def _committed_entries(path: Path) -> list[commit_index.Entry]:
    """The index entries that are valid now and after any crash: a reader can see an entry that is
    not on disk yet, so the index is brought to disk first."""
    with index_path(path).open("rb") as file:
        index = file.read()
        os.fdatasync(file.fileno())
    with path.open("rb") as file:
        return commit_index.committed(
            index, lambda start, end: os.pread(file.fileno(), end - start, start)
        )


def _complete_entry(file: FileEntry, entries: Sequence[commit_index.Entry]) -> FileEntry:
    """The index does not tell the oldest timestamp; only reading all rows would."""
    end = entries[-1].end_offset if entries else file.first
    return msgspec.structs.replace(
        file,
        end=end,
        rows=end - file.first,
        bytes=entries[-1].end_byte if entries else 0,
        max_timestamp_us=max((entry.newest_us for entry in entries), default=None),
    )


def read_batches(path: Path, file_first: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The batches with any of the offsets from `first` to `end`; the file begins at `file_first`.

    Raises FileNotFoundError, RecordingDamaged.
    """
    entries = commit_index.parse(index_path(path).read_bytes())
    with path.open("rb") as file:
        schema = pa.ipc.read_schema(file)
        for batch_first, start_byte, entry in commit_index.extents(entries, file_first):
            if batch_first >= end:
                return
            if entry.end_offset <= first:
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
