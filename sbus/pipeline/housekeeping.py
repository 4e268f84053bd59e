"""What keeps a recording in order: sealing, dropping what is old, deleting what nobody reads.

Sealing makes Parquet of complete segments. Retention drops the oldest files of a table from its
front, so that what is kept has no holes. Both change the manifest only; files that it does not list
any more are deleted when the grace period is over, so that whoever planned to read one can.

Done by the recorder from time to time; knows nothing of buses.
"""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.errors import SbusError
from sbus.pipeline import manifest
from sbus.pipeline.manifest import Edit, FileEntry, Manifest
from sbus.pipeline.recording import RecordingDamaged, index_path
from sbus.pipeline.rewriting import host_folder, rewrite
from sbus.pipeline.schemas import TABLES

_LEFTOVER_SECONDS_MIN = 3600.0
"""Whoever writes a file lists it sooner than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """For how long what is kept; None: for ever."""

    seconds: float | None
    bytes: int | None
    """Of all files of one recorder that its manifest lists."""
    grace_seconds: float


def seal(directory: Path, recorder: str, stop: threading.Event) -> None:
    """Make Parquet of every complete segment.

    Raises Interrupted when `stop` is set; RecordingDamaged or OSError for the first segment of
    which that cannot be done, when it has been done for the others.
    """
    failure: SbusError | OSError | None = None
    for name, table in manifest.load(directory, recorder).tables.items():
        for file in table.files:
            if file.kind == "hot" and file.end is not None:
                try:
                    rewrite(directory, recorder, name, [file], stop=stop)
                except (RecordingDamaged, OSError) as error:
                    failure = failure or error
    if failure is not None:
        raise failure


def drop_old(directory: Path, recorder: str, keeping: Keeping, now_us: int) -> None:
    """Let the manifest forget what is older, or more, than is to be kept."""
    oldest_us = 0 if keeping.seconds is None else now_us - round(keeping.seconds * 1e6)
    with manifest.edit(directory, recorder) as change:
        for name in change.manifest.tables:
            while (front := _front(change.table(name).files)) and _newest_us(front) < oldest_us:
                _drop(change, name, front)
        while keeping.bytes is not None and _listed_bytes(change.manifest) > keeping.bytes:
            fronts = {name: _front(change.table(name).files) for name in change.manifest.tables}
            droppable = [name for name, front in fronts.items() if front]
            if not droppable:
                return
            name = min(droppable, key=lambda name: _newest_us(fronts[name]))
            _drop(change, name, fronts[name])


def _front(files: Sequence[FileEntry]) -> Sequence[FileEntry]:
    """The fewest files from the first on that can go together: behind all of their offsets the
    others begin. None where the segment that is being written would have to go."""
    end = 0
    for count, file in enumerate(files):
        if count and file.first >= end:
            return files[:count]
        if file.end is None:
            return []
        end = max(end, file.end)
    return files


def _drop(change: Edit, name: str, front: Sequence[FileEntry]) -> None:
    left = change.table(name).files[len(front) :]
    ends = [file.end for file in front if file.end is not None]
    change.set_table(name, left[0].first if left else max(ends), left)


def _newest_us(files: Sequence[FileEntry]) -> int:
    return max(file.max_timestamp_us or 0 for file in files)


def _listed_bytes(listed: Manifest) -> int:
    return sum(file.bytes or 0 for table in listed.tables.values() for file in table.files)


def delete_retired(directory: Path, recorder: str, keeping: Keeping, now_us: int) -> None:
    """Delete the files that have not been listed for the grace period."""
    since_us = now_us - round(keeping.grace_seconds * 1e6)
    with manifest.edit(directory, recorder) as change:
        due = {r.path for r in change.manifest.retired if r.since_us <= since_us}
        for name in due:
            path = directory / name
            path.unlink(missing_ok=True)
            if path.suffix == ".arrows":
                index_path(path).unlink(missing_ok=True)
        change.forget_retired(due)


def delete_leftovers(directory: Path, recorder: str, keeping: Keeping, now_us: int) -> None:
    """Delete what was written to replace others and never listed, because its writer was killed."""
    since_us = now_us - round(max(keeping.grace_seconds, _LEFTOVER_SECONDS_MIN) * 1e6)
    listed = manifest.load(directory, recorder)
    known = {file.path for table in listed.tables.values() for file in table.files}
    known |= {retired.path for retired in listed.retired}
    for table in TABLES:
        folders = directory.glob(f"{table}/date=*/{host_folder(listed.host)}")
        for path in (path for folder in folders for path in folder.iterdir()):
            is_own = path.name.lstrip(".").startswith(f"{recorder}-")
            if is_own and str(path.relative_to(directory)) not in known:
                _delete_if_older(path, since_us)


def _delete_if_older(path: Path, since_us: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime_ns // 1000 < since_us:
            path.unlink()
