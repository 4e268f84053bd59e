"""The file `recorder-INCARNATION.json` in a recorder's directory, written once when it begins.

It says who records, and where sealed rows go. Its name has the incarnation, so that it shows if two
recordings of one recorder were copied into one directory.
"""

import os
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from sbus.errors import ConfigurationError
from sbus.pipeline.store.row_batches import RecorderIdentity
from sbus.unix.durable_files import sync

VERSION: Final = 2
PATTERN: Final = "recorder-*.json"


class RecorderFile(msgspec.Struct, frozen=True, kw_only=True):
    """`recorder`, `host` and `bus` are as in the rows of the tables."""

    version: int = VERSION
    recorder: str
    incarnation: str
    """Chosen at random when the recording begins, because its offsets begin at 0 again after it was
    deleted."""
    host: str
    bus: str
    table: str | None = None
    """The URI or path of what is sealed; None: the directory of the recording."""

    @property
    def qualified_name(self) -> str:
        return qualified(self.recorder, self.incarnation)


def qualified(recorder: str, incarnation: str) -> str:
    """The recorder, and the incarnation of its recording."""
    return f"{recorder}@{incarnation}"


def recorder_of(qualified_name: str) -> str:
    return qualified_name.partition("@")[0]


def load(home: Path) -> RecorderFile | None:
    """That of the recorder with this directory, if there is one. Raises ConfigurationError."""
    paths = list(home.glob(PATTERN))
    if not paths:
        return None
    if len(paths) > 1:
        raise ConfigurationError(
            f"{home} holds files of several recordings of one recorder: keep each of them "
            "in a directory of its own"
        )
    return _read(paths[0])


@lru_cache(4_096)
def _read(path: Path) -> RecorderFile:
    """It is written once, so a stream that asks many times a second need not read it again."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=RecorderFile)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} does not describe a recorder: {error}") from error
    if found.version != VERSION:
        raise ConfigurationError(
            f"{path} is of version {found.version}; this program understands {VERSION}: "
            "record to another directory, or delete this recording"
        )
    return found


def load_all(directory: Path) -> list[RecorderFile]:
    """Those of all recorders, by name. Raises ConfigurationError."""
    homes = sorted({path.parent for path in directory.glob(f"*/{PATTERN}")})
    return [found for found in map(load, homes) if found is not None]


def begin(directory: Path, identity: RecorderIdentity, table: str | None) -> RecorderFile:
    """Write the file of a recorder, which has its lock; it is on disk when this returns."""
    new = RecorderFile(
        recorder=identity.recorder,
        incarnation=secrets.token_hex(8),
        host=identity.host,
        bus=identity.bus,
        table=table,
    )
    home = directory / new.recorder
    temporary = home / "recorder.tmp"
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(new)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(home / PATTERN.replace("*", new.incarnation))
    for path in (home, directory, directory.parent):
        sync(path)
    return new
