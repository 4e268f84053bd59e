"""The files of a recording, and parts of them for tasks to read.

A file is a segment file of the hot log, or a Parquet file of the table of sealed rows. Descriptions
of both can be pickled, and a `Piece` read wherever its file can be reached.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from sbus.errors import ConfigurationError
from sbus.pipeline.store.recorder_file import qualified
from sbus.pipeline.store.schemas import IDENTITY


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file with rows of one recorder, with offsets from `first` to `end` (exclusive).

    A sealed file may lack some of these offsets, where a clock was set back over midnight.
    """

    path: str
    """Absolute, or a URI."""
    table: str
    is_sealed: bool
    recorder: str
    incarnation: str
    host: str
    bus: str | None = None
    """None for a sealed file, which has it as a column."""
    first: int
    end: int
    rows: int
    bytes: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None
    """Timestamps, at most two milliseconds too wide; None if unknown."""

    @property
    def identity(self) -> dict[str, str | None]:
        """The columns that the file may lack."""
        return {name: getattr(self, name) for name in IDENTITY}

    @property
    def qualified_name(self) -> str:
        """Of its recorder."""
        return qualified(self.recorder, self.incarnation)

    def may_hold(self, since_us: int | None, until_us: int | None, hosts: Sequence[str]) -> bool:
        """Whether it may hold rows of these times and hosts; None and () mean all."""
        if since_us is not None and self.newest_us is not None and self.newest_us < since_us:
            return False
        if until_us is not None and self.oldest_us is not None and self.oldest_us >= until_us:
            return False
        return not hosts or self.host in hosts

    def piece(self, first: int, end: int) -> "Piece | None":
        """The part between two offsets, if there is one."""
        first, end = max(first, self.first), min(end, self.end)
        if first >= end:
            return None
        # How many rows a part of a file with holes has is unknown.
        is_whole = end - first == self.end - self.first
        return Piece(self, first, end, self.rows if is_whole else min(self.rows, end - first))


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows of a file with offsets from `first` to `end` (exclusive), at most `rows`."""

    file: StoredFile
    first: int
    end: int
    rows: int


def absolute(location: str) -> str:
    """Of a path the one that other processes find, too; of a URI itself."""
    return location if "://" in location else os.path.abspath(location)


def file_system(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it. Raises ConfigurationError, OSError."""
    if "://" not in location:
        return fs.LocalFileSystem(), location
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(location)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{location}: {error}") from error
    return found
