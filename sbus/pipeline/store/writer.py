"""Writing a recorder's part of a recording: its directory, its lock, and its tables.

One process at a time writes it. Opening it recovers what the previous writer left, however that
ended: anything torn is cut off, and offsets continue after the committed rows. A table has a
segment file from its first row on. A segment file ends when it is large or old; then it can be
converted to Parquet.
"""

import fcntl
import os
import secrets
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sbus.errors import ConfigurationError
from sbus.pipeline.store import manifest, segment_file
from sbus.pipeline.store.manifest import Edit, Manifest, sync_directory
from sbus.pipeline.store.row_batches import RecorderIdentity, RowBatch
from sbus.pipeline.store.schemas import TABLES
from sbus.pipeline.store.segment_file import SegmentFileWriter

_LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class Rolling:
    """When a segment file ends: at either bound."""

    bytes_max: int
    seconds_max: float


class TableWriter:
    """Writes the rows of one table; made by `RecordingWriter`."""

    def __init__(self, recording: "RecordingWriter", name: str, next_offset: int) -> None:
        self.name = name
        self.next_offset = next_offset
        self._recording = recording
        self._file: SegmentFileWriter | None = None
        self._begun_at = 0.0

    def append(self, batch: RowBatch, rolling: Rolling | None = None) -> None:
        """Commit rows with the offsets from `next_offset` on; end the segment file if it is due.

        Raises OSError; then the recording can only be closed. What was committed is before
        `next_offset`.
        """
        if self._file is None:
            self._file = self._begin()
        self._file.append(batch)
        self.next_offset = self._file.end
        if rolling is not None:
            age_seconds = time.monotonic() - self._begun_at
            if self._file.bytes >= rolling.bytes_max or age_seconds >= rolling.seconds_max:
                self.roll()

    def roll(self) -> None:
        """End the segment file, if there is one; the next row begins another."""
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        complete = file.entry(self._recording.directory, is_complete=True)
        with self._recording.edit() as change:
            table = change.table(self.name)
            files = [listed for listed in table.files if listed.path != complete.path]
            if complete.rows:
                files.append(complete)
            change.set_table(self.name, table.earliest, files)

    def _begin(self) -> SegmentFileWriter:
        path = self._recording.hot / f"{self.name}-{self.next_offset:020}.arrows"
        # A retired file without committed rows may have the same name. Retired files are deleted
        # while the manifest is locked, too, so that one is either gone, or listed again here.
        with ExitStack() as on_failure:
            with self._recording.edit() as change:
                file = SegmentFileWriter(path, self.next_offset, TABLES[self.name])
                on_failure.callback(file.close)
                listed = file.entry(self._recording.directory, is_complete=False)
                table = change.table(self.name)
                change.set_table(self.name, table.earliest, [*table.files, listed])
            on_failure.pop_all()
        self._begun_at = time.monotonic()
        return file


def is_written(directory: Path, recorder: str) -> bool:
    """Whether a recorder is writing this part of the recording now."""
    try:
        descriptor = os.open(directory / recorder / _LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class RecordingWriter:
    """Writes one recorder's part of the recording in `directory`; makes both if need be.

    Raises ConfigurationError if another process is writing it, OSError.
    """

    def __init__(self, directory: Path, identity: RecorderIdentity) -> None:
        self.directory = directory
        self.identity = identity
        self.home = directory / identity.recorder
        self.hot = self.home / "hot"
        self.hot.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        try:
            if not (self.home / manifest.NAME).exists():
                self._write_first_manifest()
            tables = self._recover()
        except BaseException:
            os.close(self._lock)
            raise
        self.tables = {
            name: TableWriter(self, name, _next_offset(tables.get(name))) for name in TABLES
        }

    def edit(self) -> AbstractContextManager[Edit]:
        """Change the manifest, in a `with` block."""
        return manifest.edit(self.directory, self.identity.recorder)

    def close(self) -> None:
        """End every segment file and release the lock.

        Raises OSError if the manifest cannot be written; the next writer recovers from that.
        """
        try:
            for table in self.tables.values():
                table.roll()
        finally:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except OSError:
            # It may have the same cause as `error`; the next writer recovers from it.
            if error is None:
                raise

    def _take_lock(self) -> int:
        path = self.home / _LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigurationError(
                f"{self.home} is being written by another recorder of this bus: end that one, or "
                "record to another directory"
            ) from None
        return descriptor

    def _write_first_manifest(self) -> None:
        first = Manifest(
            version=manifest.VERSION,
            recorder=self.identity.recorder,
            incarnation=secrets.token_hex(8),
            host=self.identity.host,
            bus=self.identity.bus,
            tables={},
            updated_us=time.time_ns() // 1000,
        )
        manifest.begin(self.directory, first)
        for path in (self.directory, self.directory.parent):
            sync_directory(path)

    def _recover(self) -> dict[str, manifest.Table]:
        with self.edit() as change:
            for name in change.manifest.tables:
                table = change.table(name)
                files = [
                    segment_file.recover(self.directory, file) if file.end is None else file
                    for file in table.files
                ]
                change.set_table(name, table.earliest, [file for file in files if file.rows])
            known = change.manifest.paths()
        for path in self.hot.glob("*.arrows"):
            # The previous writer ended before it could list this file, so no reader knows it.
            if str(path.relative_to(self.directory)) not in known:
                segment_file.delete(path)
        return change.manifest.tables


def _next_offset(table: manifest.Table | None) -> int:
    if table is None:
        return 0
    return max([table.earliest, *(file.end for file in table.files if file.end is not None)])
