"""The manifest of a recorder: the files that make up its recording, and the offsets in each.

Every reader reads it once and uses that reading throughout. So a program that seals, compacts or
drops files first replaces the manifest atomically. A file that is no longer listed is `retired`,
and deleted after the grace period, when no reader can need it any more.

Several programs may change it, one at a time, under a lock of its own: see `edit`.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import msgspec

from sbus.errors import ConfigurationError

VERSION: Final = 1
NAME: Final = "manifest.json"
_LOCK_NAME: Final = "manifest.lock"
_MARK: Final = "incarnation-"
"""An empty file beside the manifest is named by this and the incarnation. If two recordings of one
recorder are copied into one directory, one manifest replaces the other, but both files remain."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file with the rows from `first` to `end` (exclusive), or only those of `ranges`. Of the
    segment file that is being written only `first` is known."""

    path: str
    """Relative to the directory of the recording."""
    kind: Literal["hot", "parquet"]
    first: int
    end: int | None
    rows: int | None
    bytes: int | None
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    ranges: list[tuple[int, int]] | None = None

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The offsets in it; the file is complete."""
        if self.ranges is not None:
            return self.ranges
        assert self.end is not None
        return [(self.first, self.end)]


class Table(msgspec.Struct, frozen=True):
    """The files of a table in the order of their first offsets; no offset is in two of them."""

    earliest: int
    """The first offset that is still kept."""
    files: list[FileEntry]


class Retired(msgspec.Struct, frozen=True):
    """A file that the manifest has not listed since then."""

    path: str
    since_us: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`recorder`, `host` and `bus` are as in the rows of the tables."""

    version: int
    recorder: str
    incarnation: str = ""
    """Chosen at random when the recording begins, because its offsets begin at 0 again after it was
    deleted; empty in a recording of an earlier version."""
    host: str
    bus: str
    tables: dict[str, Table]
    updated_us: int
    retired: list[Retired] = []

    @property
    def qualified_name(self) -> str:
        """The recorder, and the incarnation of its recording."""
        return f"{self.recorder}@{self.incarnation}" if self.incarnation else self.recorder

    def paths(self) -> set[str]:
        """All files that are listed or retired."""
        listed = (file.path for table in self.tables.values() for file in table.files)
        return {*listed, *(retired.path for retired in self.retired)}


def recorder_of(qualified_name: str) -> str:
    return qualified_name.partition("@")[0]


def load(directory: Path, recorder: str) -> Manifest:
    """Read a recorder's manifest. Raises ConfigurationError, which names the file."""
    path = directory / recorder / NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is no manifest of a recording: {error}") from error
    if manifest.version != VERSION:
        raise ConfigurationError(
            f"{path} is of version {manifest.version}; this program understands {VERSION}"
        )
    _check_incarnation(path, manifest.incarnation)
    return manifest


def _check_incarnation(path: Path, incarnation: str) -> None:
    marks = {mark.name.removeprefix(_MARK) for mark in path.parent.glob(f"{_MARK}*")}
    if marks - {incarnation}:
        raise ConfigurationError(
            f"{path.parent} holds files of several recordings of one recorder: keep each of them "
            "in a directory of its own"
        )


def begin(directory: Path, manifest: Manifest) -> None:
    """Store the first manifest of a recorder, which holds its lock."""
    folder = directory / manifest.recorder
    for mark in folder.glob(f"{_MARK}*"):  # of a recorder that was killed here
        mark.unlink()
    (folder / f"{_MARK}{manifest.incarnation}").touch()
    store(directory, manifest)


def store(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically; the new one is on disk when this returns."""
    path = directory / manifest.recorder / NAME
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(manifest)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Edit:
    """A change of a manifest; `manifest` is what will be stored."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def table(self, name: str) -> Table:
        return self.manifest.tables.get(name, Table(0, []))

    def set_table(self, name: str, earliest: int, files: list[FileEntry]) -> None:
        """List these files, in any order; files that are no longer listed retire."""
        kept = {file.path for file in files}
        now_us = time.time_ns() // 1000
        gone = [
            Retired(file.path, now_us) for file in self.table(name).files if file.path not in kept
        ]
        table = Table(earliest, sorted(files, key=lambda file: (file.first, file.path)))
        # A segment file without a committed batch leaves its name to the next.
        retired = [old for old in (*self.manifest.retired, *gone) if old.path not in kept]
        tables = {**self.manifest.tables, name: table}
        self.manifest = msgspec.structs.replace(self.manifest, tables=tables, retired=retired)

    def forget_retired(self, paths: set[str]) -> None:
        """These have been deleted."""
        left = [retired for retired in self.manifest.retired if retired.path not in paths]
        self.manifest = msgspec.structs.replace(self.manifest, retired=left)


@contextmanager
def edit(directory: Path, recorder: str) -> Iterator[Edit]:
    """Lock and change the manifest; it is stored when the block ends without an exception."""
    descriptor = os.open(directory / recorder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        before = load(directory, recorder)
        change = Edit(before)
        yield change
        if change.manifest != before:
            now_us = time.time_ns() // 1000
            store(directory, msgspec.structs.replace(change.manifest, updated_us=now_us))
    finally:
        os.close(descriptor)
