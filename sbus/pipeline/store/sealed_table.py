"""The sealed rows of a recording: a Delta table for each of its tables.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md describes the format, which many programs
read. A file has rows of one date, host and recorder. A commit that adds rows of a recorder also
sets that recorder's *transaction version*, to the offset where they end. So the table itself knows
which rows are sealed, and a program that is killed at any instant leaves nothing to be mended.

The table is in the directory of the recording, or at a URI. For URIs deltalake and pyarrow take
credentials and the like from the environment.
"""

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from sbus.errors import SbusError
from sbus.pipeline.store.schemas import FILE_SCHEMAS, PARTITIONS, timestamp_us
from sbus.pipeline.store.stored_file import StoredFile
from sbus.protocol.text import one_line
from sbus.unix.durable_files import locked, sync

_STATISTIC_US = 999
"""Delta's statistics of times are in whole milliseconds, rounded down."""
_MARK = "_table-"
"""An empty file beside the log is named by this and the id of the table. If two tables are copied
into one directory, the commits of one replace those of the other, but both files remain."""
CHECKPOINT_COMMITS = 100
_NO_CHECKPOINT = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_UNLISTED_HOURS = 1
"""Another recorder may be about to list a file that is newer."""
_COLUMNS = (
    *("path", "size_bytes", "num_records", "min.offset", "max.offset"),
    *("min.timestamp", "max.timestamp", "partition.host", "partition.recorder"),
    "partition.incarnation",
)


class SealedTableFailed(SbusError):
    """The table of sealed rows cannot be read or written; the text says why."""


@contextmanager
def _delta_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError) as error:
        reason = one_line(str(error).strip().partition("\n")[0])
        raise SealedTableFailed(f"{uri}: {reason}") from error


class SealedTable:
    """The table `name` below `root`, a directory or URI, as it was when it was opened.

    Every method raises SealedTableFailed.
    """

    def __init__(self, root: str, name: str) -> None:
        self.uri = f"{root}/{name}"
        self.name = name
        self._path = None if "://" in root else Path(self.uri)
        if self._path is not None and len(list(self._path.glob(f"{_MARK}*"))) > 1:
            raise SealedTableFailed(
                f"{self.uri} holds files of several tables, which have replaced one another: "
                "keep each of them in a directory of its own"
            )
        with _delta_errors(self.uri):
            try:
                self._delta: DeltaTable | None = DeltaTable(self.uri)
            except TableNotFoundError:
                self._delta = None

    def end(self, qualified_name: str) -> int:
        """The recorder's rows with lower offsets are sealed."""
        if self._delta is None:
            return 0
        with _delta_errors(self.uri):
            return self._delta.transaction_version(self._application(qualified_name)) or 0

    def files(self) -> list[StoredFile]:
        """The files of all recorders, in the order of their first offsets."""
        if self._delta is None:
            return []
        with _delta_errors(self.uri):
            found = pa.table(self._delta.get_add_actions(flatten=True)).select(_COLUMNS)
        return sorted(map(self._file, found.to_pylist()), key=lambda file: file.first)

    def add(self, qualified_name: str, files: Sequence[AddAction], end: int) -> None:
        """List new files, in one step with `end`. It fails if `end` was set by another program."""
        with _delta_errors(self.uri):
            if self._delta is None:
                self._delta = self._create()
            self._add_columns()
            done = Transaction(self._application(qualified_name), end)
            self._commit(list(files), CommitProperties(app_transactions=[done]))

    def remove(self, files: Sequence[StoredFile]) -> None:
        """List these files of a recorder no longer; they remain for readers that have begun."""
        self._replace(files, [], changes_data=True)

    def replace(self, files: Sequence[StoredFile], merged: AddAction) -> None:
        """In one step list the file that has the same rows, and these no longer."""
        self._replace(files, [merged], changes_data=False)

    def _replace(
        self, files: Sequence[StoredFile], by: list[AddAction], *, changes_data: bool
    ) -> None:
        """It fails if another program has replaced files of this recorder since the table was
        opened. deltalake does not notice that both have removed the same."""
        now_ms = time.time_ns() // 1_000_000
        paths = [(file.path.removeprefix(f"{self.uri}/"), file.bytes) for file in files]
        removals = [RemoveAction(path, changes_data, now_ms, size) for path, size in paths]
        with _delta_errors(self.uri):
            assert self._delta is not None
            application = self._application(files[0].recorder)
            done = Transaction(application, self._delta.version())
            self._commit([*by, *removals], CommitProperties(app_transactions=[done]))

    def vacuum(self, grace_hours: int) -> None:
        """Delete files that have not been listed for so long, and those that a recorder which was
        killed has not listed."""
        if self._delta is None:
            return
        with _delta_errors(self.uri):
            for full, hours in ((False, grace_hours), (True, max(grace_hours, _UNLISTED_HOURS))):
                vacuum = functools.partial(
                    self._delta.vacuum,
                    hours,
                    enforce_retention_duration=False,
                    full=full,
                    post_commithook_properties=_NO_CHECKPOINT,
                )
                if vacuum(dry_run=True):
                    with self._on_disk():
                        vacuum(dry_run=False)
            self._delete_unfinished()

    def _delete_unfinished(self) -> None:
        """deltalake writes a file `NAME#1` and then renames it."""
        before = time.time() - _UNLISTED_HOURS * 3600
        for path in self._path.rglob("*#*") if self._path is not None else ():
            if path.stat().st_mtime < before:
                path.unlink()

    @property
    def exists(self) -> bool:
        return self._delta is not None

    def _create(self) -> DeltaTable:
        schema = _delta_schema(self.name)
        if self._path is None:
            return DeltaTable.create(self.uri, schema, "ignore", PARTITIONS.names)
        self._path.mkdir(parents=True, exist_ok=True)
        with locked(self._path):
            table = DeltaTable.create(self.uri, schema, "ignore", PARTITIONS.names)
            (self._path / f"{_MARK}{table.metadata().id}").touch()
            for path in (self._path, self._path.parent):
                sync(path)
            return table

    def _add_columns(self) -> None:
        """Those that the table had not when it was made."""
        assert self._delta is not None
        wanted = Schema.from_arrow(_delta_schema(self.name)).fields
        present = {field.name for field in self._delta.schema().fields}
        missing = [field for field in wanted if field.name not in present]
        if missing:
            self._delta.alter.add_columns(missing)

    def _application(self, qualified_name: str) -> str:
        return f"sbus/{qualified_name}/{self.name}"

    def _commit(self, actions: list[Any], properties: CommitProperties | None = None) -> None:
        assert self._delta is not None
        with self._on_disk():
            self._delta.create_write_transaction(
                actions,
                "append",
                _delta_schema(self.name),
                PARTITIONS.names,
                commit_properties=properties,
                post_commithook_properties=_NO_CHECKPOINT,
            )

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Commits that are made inside are on disk afterwards. deltalake leaves that to the kernel;
        a power failure would make the table unreadable. Old commits are deleted only when the
        checkpoint that replaces them is on disk."""
        assert self._delta is not None
        first = self._delta.version()
        yield
        self._delta.update_incremental()
        last = self._delta.version()
        self._sync_log(*(f"{version:020}.json" for version in range(first, last + 1)))
        if last // CHECKPOINT_COMMITS > first // CHECKPOINT_COMMITS:
            self._delta.create_checkpoint()
            self._sync_log(f"{last:020}.checkpoint*", "_last_checkpoint")
            self._delta.cleanup_metadata()

    def _sync_log(self, *patterns: str) -> None:
        if self._path is not None:
            log = self._path / "_delta_log"
            for path in (*(it for pattern in patterns for it in log.glob(pattern)), log):
                sync(path)

    def _file(self, row: dict[str, Any]) -> StoredFile:
        return StoredFile(
            path=f"{self.uri}/{unquote(row['path'])}",
            table=self.name,
            is_sealed=True,
            recorder=row["partition.recorder"],
            incarnation=row["partition.incarnation"],
            host=row["partition.host"],
            first=row["min.offset"],
            end=row["max.offset"] + 1,
            rows=row["num_records"],
            bytes=row["size_bytes"],
            oldest_us=timestamp_us(row["min.timestamp"]),
            newest_us=timestamp_us(row["max.timestamp"]) + _STATISTIC_US,
        )


def _delta_schema(name: str) -> pa.Schema:
    return pa.schema([*PARTITIONS, *FILE_SCHEMAS[name]])
