"""A recorder's own part of a recording: its directory, its lock, and the logs of its tables.

One process at a time writes it. Whoever opens it finds what the one before left, however that
ended: what is torn is cut off, and numbers go on behind what counts. A table has a segment from
its first row on; a segment ends when it is large or old, and is then for others to read and to
turn into Parquet.

Knows nothing of buses, and not what is in the tables.
"""

import fcntl
import hashlib
import os
import re
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from sbus.errors import ConfigurationError
from sbus.pipeline import manifest
from sbus.pipeline.manifest import Edit, Manifest, sync_directory
from sbus.pipeline.recording import index_path
from sbus.pipeline.schemas import TABLES
from sbus.pipeline.segment import SegmentWriter, describe, recover

_LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class Origin:
    """Who records what: `recorder` names it in a recording, and is made of the other two."""

    recorder: str
    host: str
    bus: str

    @classmethod
    def of(cls, host: str, bus: str) -> Self:
        digest = hashlib.sha256(f"{host}\0{bus}".encode(errors="surrogateescape")).hexdigest()
        name = re.sub(r"[^a-z0-9.-]", "-", host.lower()).strip(".-") or "host"
        return cls(f"{name}-{digest[:8]}", host, bus)


@dataclass(frozen=True, slots=True)
class Rolling:
    """When a segment ends, whichever comes first."""

    bytes_max: int
    seconds_max: float


class TableLog:
    """The rows of one table, as they come; made by `Store`."""

    def __init__(self, store: "Store", name: str, next_offset: int) -> None:
        self.name = name
        self.next_offset = next_offset
        self._store = store
        self._segment: SegmentWriter | None = None
        self._begun_at = 0.0

    def append(self, batch: pa.RecordBatch, oldest_us: int, newest_us: int) -> None:
        """Record rows that have offsets from `next_offset` on, and timestamps between these.

        They are on disk when this returns. Raises OSError: then they are not, and the store can
        only be closed.
        """
        if self._segment is None:
            self._begin()
        assert self._segment is not None
        self._segment.append(batch, oldest_us, newest_us)
        self.next_offset = self._segment.end

    def is_due(self, rolling: Rolling) -> bool:
        """Whether the segment should end."""
        return self._segment is not None and (
            self._segment.bytes >= rolling.bytes_max
            or time.monotonic() - self._begun_at >= rolling.seconds_max
        )

    def roll(self) -> None:
        """End the segment, if there is one; the next row begins another."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        segment.close()
        whole = describe(self._store.directory, segment, complete=True)
        with self._store.edit() as change:
            table = change.table(self.name)
            others = [file for file in table.files if file.path != whole.path]
            change.set_table(self.name, table.earliest, [*others, whole] if whole.rows else others)

    def _begin(self) -> None:
        path = self._store.hot / f"{self.name}-{self.next_offset:020}.arrows"
        # The name may be that of a retired segment in which nothing was committed. Whoever deletes
        # that does so while the manifest is locked, too, so it is either gone or listed again.
        with ExitStack() as on_failure:
            with self._store.edit() as change:
                segment = SegmentWriter(path, self.next_offset, TABLES[self.name])
                on_failure.callback(segment.close)
                listed = describe(self._store.directory, segment, complete=False)
                table = change.table(self.name)
                change.set_table(self.name, table.earliest, [*table.files, listed])
            on_failure.pop_all()
        self._segment = segment
        self._begun_at = time.monotonic()


class Store:
    """The part of `origin` in the recording in `directory`, which are made if need be.

    Raises ConfigurationError when it is being written already, OSError.
    """

    def __init__(self, directory: Path, origin: Origin) -> None:
        self.directory = directory
        self.origin = origin
        self.home = directory / origin.recorder
        self.hot = self.home / "hot"
        self.hot.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        try:
            if not (self.home / manifest.NAME).exists():
                self._found()
            self._recover()
            listed = manifest.load(directory, origin.recorder).tables
        except BaseException:
            os.close(self._lock)
            raise
        self.tables = {
            name: TableLog(self, name, _next_offset(listed.get(name))) for name in TABLES
        }

    def edit(self) -> AbstractContextManager[Edit]:
        """Change the manifest, in a `with` block."""
        return manifest.edit(self.directory, self.origin.recorder)

    def close(self) -> None:
        """End every segment and let others write. Raises OSError when that cannot be noted down;
        then it is found by whoever opens it next."""
        try:
            for table in self.tables.values():
                table.roll()
        finally:
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except OSError:
            # What made us stop may be what is in the way now; whoever opens it next finds it.
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

    def _found(self) -> None:
        now_us = time.time_ns() // 1000
        first = Manifest(
            version=manifest.VERSION,
            recorder=self.origin.recorder,
            host=self.origin.host,
            bus=self.origin.bus,
            tables={},
            updated_us=now_us,
        )
        manifest.store(self.directory, first)
        for path in (self.directory, self.directory.parent):
            sync_directory(path)

    def _recover(self) -> None:
        with self.edit() as change:
            for name in change.manifest.tables:
                table = change.table(name)
                files = [
                    recover(self.directory, file) if file.end is None else file
                    for file in table.files
                ]
                change.set_table(name, table.earliest, [file for file in files if file.rows])
            listed = {
                *(file.path for table in change.manifest.tables.values() for file in table.files),
                *(retired.path for retired in change.manifest.retired),
            }
        for path in self.hot.glob("*.arrows"):
            # Begun, but not listed before the end came: nobody has ever seen it.
            if str(path.relative_to(self.directory)) not in listed:
                path.unlink()
                index_path(path).unlink(missing_ok=True)


def _next_offset(table: manifest.Table | None) -> int:
    if table is None:
        return 0
    return max([table.earliest, *(file.end for file in table.files if file.end is not None)])
