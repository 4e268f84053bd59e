"""A segment that is being written: batches go in, and count once they are safe.

`append` writes a batch, sees it on disk, writes its index entry, and sees that on disk: then, and
not before, the batch has been recorded. Where one of these steps fails (the disk is full), both
files are cut back to what counts, so that nothing torn is left and nothing recorded is lost.

Knows nothing of what is in a batch, nor when a segment ends.
"""

import io
import os
from pathlib import Path

import pyarrow as pa

from sbus.pipeline import commit_index
from sbus.pipeline.manifest import FileEntry, sync_directory
from sbus.pipeline.recording import committed_entries, index_path, summarise

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""Most columns hold the same in every row."""


class SegmentWriter:
    """Writes a new segment whose first row has offset `first`."""

    def __init__(self, path: Path, first: int, schema: pa.Schema) -> None:
        self.path = path
        self.first = first
        self.end = first
        self.bytes = 0
        self.oldest_us: int | None = None
        self.newest_us: int | None = None
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

    def append(self, batch: pa.RecordBatch, oldest_us: int, newest_us: int) -> None:
        """Record a batch with the next offsets; may be called in another thread than before.

        Raises OSError, and then it was not recorded, and nothing more can be.
        """
        self._stream.write_batch(batch)
        data = self._unwritten.getvalue()
        self._unwritten.seek(0)
        self._unwritten.truncate()
        end = self.end + batch.num_rows
        entry = commit_index.seal(end, self.bytes + len(data), newest_us, data)
        try:
            _write(self._data, data)
            os.fdatasync(self._data)
            _write(self._index, entry.pack())
            os.fdatasync(self._index)
        except OSError:
            self._cut_back()
            raise
        self.end = end
        self.bytes = entry.end_byte
        self._index_bytes += commit_index.ENTRY_BYTES
        self.oldest_us = oldest_us if self.oldest_us is None else min(self.oldest_us, oldest_us)
        self.newest_us = newest_us if self.newest_us is None else max(self.newest_us, newest_us)

    def close(self) -> None:
        os.close(self._index)
        os.close(self._data)

    def _cut_back(self) -> None:
        os.ftruncate(self._index, self._index_bytes)
        os.ftruncate(self._data, self.bytes)


def describe(directory: Path, writer: SegmentWriter, *, complete: bool) -> FileEntry:
    """What the manifest says of a segment, which is `complete` or still being written."""
    return FileEntry(
        path=str(writer.path.relative_to(directory)),
        kind="hot",
        first=writer.first,
        end=writer.end if complete else None,
        rows=writer.end - writer.first if complete else None,
        bytes=writer.bytes if complete else None,
        min_timestamp_us=writer.oldest_us if complete else None,
        max_timestamp_us=writer.newest_us if complete else None,
    )


def recover(directory: Path, file: FileEntry) -> FileEntry:
    """Cut off what is torn of a segment that was being written when its writer ended, and say what
    it holds."""
    path = directory / file.path
    entries = committed_entries(path)
    whole = summarise(file, entries)
    assert whole.bytes is not None
    os.truncate(index_path(path), len(entries) * commit_index.ENTRY_BYTES)
    os.truncate(path, whole.bytes)
    return whole


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
