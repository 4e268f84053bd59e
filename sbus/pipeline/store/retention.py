"""Retention: dropping the oldest sealed files of a recorder.

Files are dropped from the front of a recording's table, those whose offsets overlap together, so
what remains has no holes. Earlier recordings of the same recorder, of other incarnations, count as
well: no other program drops their rows.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.stored_file import StoredFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long rows are kept, and how many bytes of sealed files; None means no bound."""

    seconds: float | None
    bytes: int | None
    grace_hours: int
    """How long files remain that are to be deleted, for readers that have begun."""


def drop_expired(
    tables: Sequence[SealedTable], recorder: str, retention: Retention, now_us: int
) -> None:
    """Drop a recorder's files that are too old or too much. Raises SealedTableFailed."""
    recorded: dict[tuple[str, str], list[StoredFile]] = defaultdict(list)
    for table in tables:
        for file in table.files():
            if file.recorder == recorder:
                recorded[table.name, file.incarnation].append(file)
    dropped = _expired([overlapping(own) for own in recorded.values()], retention, now_us)
    for table in tables:
        if files := [file for file in dropped if file.table == table.name]:
            table.remove(files)


def _expired(
    recorded: list[list[list[StoredFile]]], retention: Retention, now_us: int
) -> list[StoredFile]:
    """Takes the files to drop out of `recorded`: for each recording's table its groups of files."""
    oldest_us = 0 if retention.seconds is None else now_us - round(retention.seconds * 1e6)
    dropped: list[StoredFile] = []
    for waiting in recorded:
        while waiting and _newest_us(waiting[0]) < oldest_us:
            dropped += waiting.pop(0)
    while retention.bytes is not None and _bytes(recorded) > retention.bytes:
        oldest = min(filter(None, recorded), key=lambda waiting: _newest_us(waiting[0]))
        dropped += oldest.pop(0)
    return dropped


def overlapping(files: Iterable[StoredFile]) -> list[list[StoredFile]]:
    """The files, which are in the order of their first offsets, in groups that do not overlap."""
    groups: list[list[StoredFile]] = []
    end = 0
    for file in files:
        if groups and file.first < end:
            groups[-1].append(file)
        else:
            groups.append([file])
        end = max(end, file.end)
    return groups


def _newest_us(files: list[StoredFile]) -> int:
    return max(file.newest_us or 0 for file in files)


def _bytes(recorded: list[list[list[StoredFile]]]) -> int:
    return sum(file.bytes for waiting in recorded for files in waiting for file in files)
