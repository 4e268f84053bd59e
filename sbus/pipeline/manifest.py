"""The manifest of a recorder: which files are its recording, and which offsets are in each.

It is the one truth. Every reader reads it once and goes by that, so whoever seals, compacts or
drops files first puts a new manifest in the place of the old one, at once and whole. A file that is
not listed any more is `retired`, and deleted when nobody can still be reading it.

Several programs may change it, one at a time, under a lock of its own: `edit`. This module does not
know what is in the files.
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


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file with the rows from `first` to `end` (exclusive), or, where not all of these are in
    it, those of `ranges`. Of the segment that is being written only `first` is known."""

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
        """The offsets in it, of a file that is complete."""
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
    """A file that no manifest lists since then."""

    path: str
    since_us: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """See the schema of the tables for what recorder, host and bus are."""

    version: int
    recorder: str
    host: str
    bus: str
    tables: dict[str, Table]
    updated_us: int
    retired: list[Retired] = []


def load(directory: Path, recorder: str) -> Manifest:
    """The manifest of a recorder of the recording in `directory`.

    Raises ConfigurationError, which names the file, where there is none that can be understood.
    """
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
    return manifest


def store(directory: Path, manifest: Manifest) -> None:
    """Put it in the place of the last one; it is on disk when this returns."""
    home = directory / manifest.recorder
    text = msgspec.json.format(msgspec.json.encode(manifest))
    write_whole(home / NAME, text)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that there is either the old one or this, whatever happens."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Names in it are on disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Edit:
    """A manifest that is being changed: `manifest` is what will be stored."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    def table(self, name: str) -> Table:
        return self.manifest.tables.get(name, Table(0, []))

    def set_table(self, name: str, earliest: int, files: list[FileEntry]) -> None:
        """List these files, in any order; those that were listed and are not any more retire."""
        kept = {file.path for file in files}
        now_us = time.time_ns() // 1000
        gone = [
            Retired(file.path, now_us) for file in self.table(name).files if file.path not in kept
        ]
        table = Table(earliest, sorted(files, key=lambda file: (file.first, file.path)))
        # A segment in which nothing was committed leaves its name to the next.
        retired = [old for old in (*self.manifest.retired, *gone) if old.path not in kept]
        self.manifest = msgspec.structs.replace(
            self.manifest,
            tables={**self.manifest.tables, name: table},
            retired=retired,
        )

    def forget_retired(self, paths: set[str]) -> None:
        """These have been deleted."""
        left = [retired for retired in self.manifest.retired if retired.path not in paths]
        self.manifest = msgspec.structs.replace(self.manifest, retired=left)


@contextmanager
def edit(directory: Path, recorder: str) -> Iterator[Edit]:
    """Change the manifest, alone; it is stored when the block ends without an exception."""
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
