"""Sealing: complete segment files become Parquet files of the table of sealed rows.

A segment file gives one Parquet file for each date (UTC) of its timestamps. They are written first,
under names that only depend on the segment file, and brought to disk; then one commit lists them.
If the recorder is killed before the commit, it writes the same files again. After the commit the
table says that these rows are sealed; readers stop using the segment file, and after the grace
period it is deleted.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from sbus.errors import SbusError
from sbus.pipeline.store import segment_file
from sbus.pipeline.store.recorder_file import RecorderFile
from sbus.pipeline.store.schemas import TABLES
from sbus.pipeline.store.sealed_file import SealedFileWriter
from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.segment_file import RecordingDamaged, first_offset, segment_files

_DAY_US = 86_400_000_000
_EPOCH = date(1970, 1, 1)


class Interrupted(SbusError):
    """Sealing was asked to stop; the segment file is not sealed."""


class Sealer:
    """Seals and deletes the segment files of one recorder in `directory`."""

    def __init__(self, directory: Path, recorder: RecorderFile) -> None:
        self.root = recorder.table or str(directory)
        self.recorder = recorder
        self._home = directory / recorder.recorder
        self._ends = dict.fromkeys(TABLES, 0)
        """Of each table, the end of what is known to be sealed."""

    def seal(self, stop: threading.Event | None = None) -> int:
        """Seal every complete segment file; returns how many there were.

        Raises Interrupted when `stop` is set; SealedTableFailed, OSError. What is damaged in a
        segment file is left out, and RecordingDamaged is raised at the end; the file is kept under
        another name.
        """
        sealed = 0
        damaged: list[RecordingDamaged] = []
        for name in TABLES:
            complete = list(pairwise(segment_files(self._home, name)))
            if not complete or first_offset(complete[-1][1]) <= self._ends[name]:
                continue
            table = SealedTable(self.root, name)
            self._ends[name] = table.end(self.recorder.qualified_name)
            if self._ends[name] > first_offset(complete[-1][1]):
                raise RecordingDamaged(
                    f"{self._home} ends before what is sealed of it: its files were deleted; "
                    "delete all of it, and the recorder begins anew"
                )
            for path, following in complete:
                end = first_offset(following)
                if end > self._ends[name]:
                    damaged += _seal(path, end, table, self.recorder, stop)
                    self._ends[name] = end
                    sealed += 1
        if damaged:
            raise damaged[0]
        return sealed

    def delete_sealed(self, grace_seconds: float) -> None:
        """Delete segment files that have been sealed for the grace period."""
        before = time.time() - grace_seconds
        for name in TABLES:
            for path, following in pairwise(segment_files(self._home, name)):
                is_sealed = first_offset(following) <= self._ends[name]
                if is_sealed and path.stat().st_mtime <= before:
                    segment_file.delete(path)


def _seal(
    path: Path,
    end: int,
    table: SealedTable,
    recorder: RecorderFile,
    stop: threading.Event | None,
) -> list[RecordingDamaged]:
    first = first_offset(path)
    damaged: list[RecordingDamaged] = []
    writers: dict[date, SealedFileWriter] = {}
    with ExitStack() as at_end:
        for batch in segment_file.read_batches(path, first, end, damaged):
            if stop is not None and stop.is_set():
                raise Interrupted("stopped before the end")
            for day, rows in _by_day(batch):
                if day not in writers:
                    writers[day] = at_end.enter_context(_writer(table, recorder, day, first))
                writers[day].write(rows)
        files = [writer.finish() for writer in writers.values()]
    # From now on its grace period may begin: see `delete_sealed`.
    os.utime(path)
    table.add(recorder.qualified_name, files, end)
    if damaged:
        os.link(path, path.with_suffix(".damaged"))
        os.link(segment_file.index_path(path), path.with_suffix(".damaged-index"))
    return damaged


def _writer(table: SealedTable, recorder: RecorderFile, day: date, first: int) -> SealedFileWriter:
    partition = {
        "date": day.isoformat(),
        "host": recorder.host,
        "recorder": recorder.recorder,
        "incarnation": recorder.incarnation,
    }
    return SealedFileWriter(table.uri, table.name, partition, f"{first:020}", recorder.bus)


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    days = batch["timestamp"].cast(pa.int64()).to_numpy() // _DAY_US
    for day in np.unique(days):
        rows = batch if (days == day).all() else batch.filter(pa.array(days == day))
        yield _EPOCH + timedelta(days=int(day)), rows
