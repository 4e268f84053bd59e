"""What a streaming query publishes, in its checkpoint: the rows that tasks staged, and a ledger.

    CHECKPOINT/sbus/staged/….arrows    the rows of a task, checked
    CHECKPOINT/sbus/ledger.json        the batch that is published, its files, and how far

Spark repeats a batch that a driver did not finish, and the tasks may then have its rows in another
order. So the ledger counts: once it names the files of a batch, those are published, from the row
on that it says, whatever is staged for the same batch later. A batch without files is published.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSelector, LocalFileSystem

from sbus.pipeline.store.stored_file import file_system
from sbus.unix.durable_files import locked, sync


class Ledger(msgspec.Struct):
    batch: int
    files: list[str]
    """Of the rows to publish, in this order; none when all are published."""
    published: int = 0
    """So many of their rows, at least."""


class Staging:
    """Of the query with this checkpoint, a directory or URI. Every method raises OSError."""

    def __init__(self, checkpoint: str) -> None:
        """Raises ConfigurationError, OSError."""
        self._files, self._root = file_system(f"{checkpoint}/sbus")

    def stage(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> str:
        """Bring rows to disk; returns the name of their file."""
        name = f"{uuid.uuid4().hex}.arrows"
        self._files.create_dir(f"{self._root}/staged", recursive=True)
        with (
            self._files.open_output_stream(f"{self._root}/staged/{name}") as stream,
            pa.ipc.new_stream(stream, schema) as rows,
        ):
            for batch in batches:
                rows.write_batch(batch)
        self._sync(f"staged/{name}", "staged", "")
        return name

    def rows(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            with self._files.open_input_stream(f"{self._root}/staged/{name}") as stream:
                yield from pa.ipc.open_stream(stream)

    def delete_others(self, names: Sequence[str]) -> None:
        """Delete all staged files but these."""
        staged = FileSelector(f"{self._root}/staged", allow_not_found=True)
        for found in self._files.get_file_info(staged):
            if found.base_name not in names:
                self._files.delete_file(found.path)

    def load(self) -> Ledger | None:
        try:
            with self._files.open_input_stream(f"{self._root}/ledger.json") as stream:
                return msgspec.json.decode(stream.read(), type=Ledger)
        except FileNotFoundError:
            return None

    def save(self, ledger: Ledger) -> None:
        """Replace the ledger in one step; it is on disk when this returns."""
        with self._files.open_output_stream(f"{self._root}/ledger.new") as stream:
            stream.write(msgspec.json.encode(ledger))
        self._sync("ledger.new")
        self._files.move(f"{self._root}/ledger.new", f"{self._root}/ledger.json")
        self._sync("")

    def locked(self) -> AbstractContextManager[None]:
        """One driver at a time publishes: Spark may begin again while an earlier one still does."""
        self._files.create_dir(self._root, recursive=True)
        is_local = isinstance(self._files, LocalFileSystem)
        return locked(Path(self._root)) if is_local else nullcontext()

    def _sync(self, *paths: str) -> None:
        if isinstance(self._files, LocalFileSystem):
            for path in paths:
                sync(Path(self._root, path))
