"""Writing a recorder's part of a recording: its lock, and the hot log of its tables.

One process at a time writes it. Opening it recovers what the previous writer left, however that
ended: anything torn is cut off, and offsets continue after the committed rows. Of each table the
last segment file is the one being written. It ends when it is large or old, and another begins; all
others are complete, and can be sealed. The last one is never deleted, so it always tells the next
offset.
"""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from sbus.errors import ConfigurationError
from sbus.pipeline.store import recorder_file, segment_file
from sbus.pipeline.store.recorder_file import RecorderFile
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.pipeline.store.schemas import SEGMENT_SCHEMAS, TABLES
from sbus.pipeline.store.segment_file import SegmentFileWriter, segment_files, segment_path

_LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class Rolling:
    """When a segment file ends: at either bound."""

    bytes_max: int
    seconds_max: float


class TableWriter:
    """Writes the rows of one table; made by `RecordingWriter`."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = name
        self._home = home
        self._begun_at = 0.0
        """When the first row of the segment file was written."""
        found = segment_files(home, name)
        self._file = self._begin(segment_file.recover(found[-1]) if found else 0)

    @property
    def next_offset(self) -> int:
        return self._file.end

    def append(self, batch: pa.RecordBatch, rolling: Rolling | None = None) -> None:
        """Commit rows with the offsets from `next_offset` on; end the segment file if it is due.

        Raises OSError; then the recording can only be closed. What was committed is before
        `next_offset`.
        """
        if self._file.end == self._file.first:
            self._begun_at = time.monotonic()
        self._file.append(batch)
        if rolling is not None:
            age_seconds = time.monotonic() - self._begun_at
            if self._file.bytes >= rolling.bytes_max or age_seconds >= rolling.seconds_max:
                self.roll()

    def roll(self) -> None:
        """End the segment file, unless it is empty, and begin another."""
        if self._file.end > self._file.first:
            complete, self._file = self._file, self._begin(self._file.end)
            complete.close()

    def close(self) -> None:
        self._file.close()

    def _begin(self, first: int) -> SegmentFileWriter:
        path = segment_path(self._home, self.name, first)
        return SegmentFileWriter(path, first, SEGMENT_SCHEMAS[self.name])


def is_written(directory: Path, recorder: str) -> bool:
    """Whether a recorder is writing this part of the recording now."""
    try:
        with (directory / recorder / _LOCK_NAME).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


class RecordingWriter:
    """Writes the part of a recorder in the recording in `directory`; makes both if need be.

    Raises ConfigurationError if another process is writing it, OSError.
    """

    def __init__(
        self, directory: Path, identity: RecorderIdentity, table: str | None = None
    ) -> None:
        """`table` is where sealed rows go; None: to `directory`."""
        self.directory = directory
        self.identity = identity
        self.home = directory / identity.recorder
        (self.home / "hot").mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self.tables: dict[str, TableWriter] = {}
        try:
            self.recorder = self._recorder_file(table)
            for name in TABLES:
                self.tables[name] = TableWriter(self.home, name)
        except BaseException:
            self._release()
            raise

    def roll(self) -> None:
        """End every segment file. Raises OSError."""
        for table in self.tables.values():
            table.roll()

    def close(self) -> None:
        """End every segment file and release the lock.

        Raises OSError if that is impossible; the next writer recovers from that.
        """
        try:
            self.roll()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except OSError:
            # It may have the same cause as `error`; the next writer recovers from it.
            if error is None:
                raise

    def _release(self) -> None:
        for table in self.tables.values():
            table.close()
        os.close(self._lock)

    def _recorder_file(self, table: str | None) -> RecorderFile:
        found = recorder_file.load(self.home)
        if found is None:
            return recorder_file.begin(self.directory, self.identity, table)
        if found.table != table:
            raise ConfigurationError(
                f"{self.home} is sealed to {found.table or self.directory}, not to "
                f"{table or self.directory}: record to another directory"
            )
        return found

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
