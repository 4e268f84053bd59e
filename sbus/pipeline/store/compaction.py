"""Compaction: small sealed files of past dates become larger ones.

A merged file is on disk before the commit that lists it in place of the others, as sealed files
are. deltalake would commit first, and a power failure could then lose the rows.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date

from sbus.pipeline.store.reader import read
from sbus.pipeline.store.sealed_file import SealedFileWriter
from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.sealing import Interrupted
from sbus.pipeline.store.stored_file import Piece, StoredFile

FILE_BYTES_MAX = 128 * 1024 * 1024


def compact(
    table: SealedTable,
    recorder: str,
    before: date,
    stop: threading.Event | None = None,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> None:
    """Merge small files of a recorder, of dates before `before`.

    Raises Interrupted when `stop` is set; SealedTableFailed, RecordingChanged, RecordingDamaged,
    OSError.
    """
    own = [file for file in table.files() if file.recorder == recorder]
    for day, files in _small(own, before, file_bytes_max):
        partition = {
            "date": day,
            "host": files[0].host,
            "recorder": recorder,
            "incarnation": files[0].incarnation,
        }
        name = f"{files[0].first:020}-{files[-1].end:020}"
        with SealedFileWriter(table.uri, table.name, partition, name, changes_data=False) as merged:
            for file in files:
                for rows in read(Piece(file, file.first, file.end, file.rows)):
                    if stop is not None and stop.is_set():
                        raise Interrupted("stopped before the end")
                    merged.write(rows)
            table.replace(files, merged.finish())


def _small(
    files: Iterable[StoredFile], before: date, file_bytes_max: int
) -> Iterator[tuple[str, list[StoredFile]]]:
    """The files to merge into one, with their date; `files` are in the order of their offsets."""
    by_folder: dict[str, list[StoredFile]] = defaultdict(list)
    for file in files:
        by_folder[file.path.rpartition("/")[0]].append(file)
    for folder, own in by_folder.items():
        day = folder.rpartition("/date=")[2].partition("/")[0]
        if day >= before.isoformat():
            continue
        together: list[StoredFile] = []
        for file in own:
            if sum(it.bytes for it in together) + file.bytes > file_bytes_max:
                if len(together) > 1:
                    yield day, together
                together = []
            together.append(file)
        if len(together) > 1:
            yield day, together
