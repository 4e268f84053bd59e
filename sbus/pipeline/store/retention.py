"""Retention: dropping the oldest files of a recording, and deleting the ones nobody reads.

The oldest files of a table are dropped from its front, so what remains has no holes. Dropping only
changes the manifest. A file that is no longer listed is deleted after the grace period, so a
program that has planned to read it still can.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sbus.pipeline.store import manifest, segment_file
from sbus.pipeline.store.manifest import Edit, FileEntry, Manifest
from sbus.pipeline.store.rewriting import host_folder
from sbus.pipeline.store.schemas import TABLES

_ORPHAN_SECONDS_MIN = 3600.0
"""A program that writes a file lists it sooner than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long rows are kept, and how many bytes; None means no bound."""

    seconds: float | None
    bytes: int | None
    """Of all listed files of one recorder."""
    grace_seconds: float


def drop_expired(directory: Path, recorder: str, retention: Retention, now_us: int) -> None:
    """Remove files from the manifest that are too old or too much."""
    oldest_us = 0 if retention.seconds is None else now_us - round(retention.seconds * 1e6)
    with manifest.edit(directory, recorder) as change:
        for name in change.manifest.tables:
            while (front := _front(change.table(name).files)) and _newest_us(front) < oldest_us:
                _drop(change, name, front)
        while retention.bytes is not None and _listed_bytes(change.manifest) > retention.bytes:
            fronts = {name: _front(change.table(name).files) for name in change.manifest.tables}
            droppable = [name for name, front in fronts.items() if front]
            if not droppable:
                return
            name = min(droppable, key=lambda name: _newest_us(fronts[name]))
            _drop(change, name, fronts[name])


def _front(files: Sequence[FileEntry]) -> Sequence[FileEntry]:
    """The fewest first files that can be dropped together: all other files begin after their
    offsets. Empty if the segment file being written would be among them."""
    end = 0
    for count, file in enumerate(files):
        if count and file.first >= end:
            return files[:count]
        if file.end is None:
            return []
        end = max(end, file.end)
    return files


def _drop(change: Edit, name: str, front: Sequence[FileEntry]) -> None:
    remaining = change.table(name).files[len(front) :]
    ends = [file.end for file in front if file.end is not None]
    change.set_table(name, remaining[0].first if remaining else max(ends), remaining)


def _newest_us(files: Sequence[FileEntry]) -> int:
    return max(file.max_timestamp_us or 0 for file in files)


def _listed_bytes(listed: Manifest) -> int:
    return sum(file.bytes or 0 for table in listed.tables.values() for file in table.files)


def delete_retired(directory: Path, recorder: str, retention: Retention, now_us: int) -> None:
    """Delete files that have not been listed for the grace period."""
    since_us = now_us - round(retention.grace_seconds * 1e6)
    with manifest.edit(directory, recorder) as change:
        due = {r.path for r in change.manifest.retired if r.since_us <= since_us}
        for name in due:
            segment_file.delete(directory / name)
        change.forget_retired(due)


def delete_orphans(directory: Path, recorder: str, retention: Retention, now_us: int) -> None:
    """Delete Parquet files that were never listed, because their writer was killed."""
    since_us = now_us - round(max(retention.grace_seconds, _ORPHAN_SECONDS_MIN) * 1e6)
    listed = manifest.load(directory, recorder)
    known = listed.paths()
    for table in TABLES:
        for path in directory.glob(f"{table}/date=*/{host_folder(listed.host)}/*"):
            is_own = path.name.lstrip(".").startswith(f"{recorder}-")
            if is_own and str(path.relative_to(directory)) not in known:
                _delete_if_older(path, since_us)


def _delete_if_older(path: Path, since_us: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime_ns // 1000 < since_us:
            path.unlink()
