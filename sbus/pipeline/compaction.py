"""Making few large Parquet files of many small ones, which is what slows their readers down.

Files of one recorder, table and date that follow each other are put together, up to a size. Those
of a date that is not over yet are left alone, because more will come. Any program may do it, while
recorders write and others read; two at a time on one recorder only make one of them fail.

Knows nothing of buses or of Spark.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from sbus.pipeline import manifest
from sbus.pipeline.manifest import FileEntry
from sbus.pipeline.recording import Recording
from sbus.pipeline.rewriting import rewrite

SMALL_BYTES = 128 * 1024 * 1024


def compact(
    directory: Path, *, before: date | None = None, small_bytes: int = SMALL_BYTES
) -> list[FileEntry]:
    """Put small files together, of dates before `before` (the current one in UTC, if None), so that
    none becomes larger than `small_bytes`; returns the entries of the new files.

    Raises ConfigurationError, OSError, RecordingDamaged.
    """
    until = before or datetime.now(UTC).date()
    new = []
    for recorder in Recording(directory).recorders():
        for name, table in manifest.load(directory, recorder).tables.items():
            for run in runs(table.files, until, small_bytes):
                generation = 1 + max(map(_generation, run))
                new += rewrite(directory, recorder, name, run, generation=generation)
    return new


def runs(files: Sequence[FileEntry], until: date, small_bytes: int) -> Iterator[list[FileEntry]]:
    """Two or more files of one date that can become one."""
    by_date: dict[date, list[FileEntry]] = {}
    for file in files:
        if file.kind == "parquet" and (day := _date(file)) < until:
            by_date.setdefault(day, []).append(file)
    for of_day in by_date.values():
        run: list[FileEntry] = []
        for file in of_day:
            if run and sum(f.bytes or 0 for f in (*run, file)) > small_bytes:
                if len(run) > 1:
                    yield run
                run = []
            run.append(file)
        if len(run) > 1:
            yield run


def _date(file: FileEntry) -> date:
    return date.fromisoformat(file.path.split("/")[1].removeprefix("date="))


def _generation(file: FileEntry) -> int:
    _, _, generation = Path(file.path).stem.rpartition("-g")
    return int(generation) if generation.isdigit() and len(generation) < 20 else 0
