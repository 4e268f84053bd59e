"""A recorder dies before each of its writes:
`python -m tests.pipeline.recorder.deaths_at_writes --jobs 2`.

In each run a recorder continues a recording, seals it to its Delta table, and drops, compacts and
deletes files. A preloaded library kills it instead of one of the calls that change files, those of
Arrow and deltalake included; in the next run instead of a later one, until one is over before that.
After each death readers must find every row once, and the next recorder must end where a recorder
does that was not killed, without a file too many.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
from datetime import timedelta
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path

from deltalake import DeltaTable

from sbus.pipeline.store.compaction import compact
from sbus.pipeline.store.retention import Retention, drop_expired
from sbus.pipeline.store.schemas import TABLES
from sbus.pipeline.store.sealed_table import SealedTable
from sbus.pipeline.store.sealing import Sealer
from sbus.pipeline.store.writer import RecordingWriter
from tests.support.deaths import dies_at, in_child, is_preloaded, preloaded
from tests.support.written import (
    DAY_US,
    IDENTITY,
    NOON_US,
    RECORDER,
    TODAY,
    append,
    messages,
    offsets,
    seal,
    sealed_files,
    write_segments,
)

MODULE = "tests.pipeline.recorder.deaths_at_writes"
MIDNIGHT_US = NOON_US + DAY_US // 2
OLD_ROWS = 2
"""Of the first segment file, which is too old after a day."""
RECORDED_ROWS = 7
RUN_ROWS = 2
LOADED_WHEN_USED = ("deltalake.fs.fs_handler", "pandas", "pyarrow.dataset")
"""Modules that a child would otherwise load, which took most of its time."""
KEEP = Retention(seconds=DAY_US / 1e6, bytes=None, grace_hours=0)


def prepare(directory: Path) -> None:
    """An old day and small files that are sealed, and a segment file over midnight that is not."""
    write_segments(directory, [NOON_US - DAY_US] * OLD_ROWS, [NOON_US], [NOON_US + 1])
    seal(directory)
    write_segments(directory, [MIDNIGHT_US - 1, MIDNIGHT_US], [MIDNIGHT_US + 1])


def run(directory: Path) -> None:
    """What a recorder does, from its start to an orderly end."""
    with RecordingWriter(directory, IDENTITY) as writer:
        append(writer, [MIDNIGHT_US + 2] * RUN_ROWS)
        writer.roll()
        sealer = Sealer(directory, writer.recorder)
        sealer.seal()
        sealer.delete_sealed(0)
        tables = [SealedTable(str(directory), name) for name in TABLES]
        drop_expired(tables, writer.recorder.recorder, KEEP, NOON_US + DAY_US // 4)
        for table in tables:
            compact(table, RECORDER, TODAY + timedelta(days=1))
            table.vacuum(KEEP.grace_hours)


def check(directory: Path) -> None:
    """Every row is there once, in the recording and, as far as it is sealed, in the table."""
    table = messages(directory)
    assert table.earliest in (0, OLD_ROWS), f"earliest row {table.earliest}"
    assert table.end - RECORDED_ROWS in (0, RUN_ROWS, 2 * RUN_ROWS), f"end {table.end}"
    assert offsets(table) == list(range(table.earliest, table.end))
    sealed = sorted(
        DeltaTable(str(directory / "messages")).to_pyarrow_table()["offset"].to_pylist()
    )
    assert sealed == list(range(table.earliest, table.earliest + len(sealed)))


def check_mended(directory: Path) -> None:
    """The next recorder has brought everything in order."""
    check(directory)
    for path in (directory / "messages").rglob("*"):
        os.utime(path, (0, 0))  # as it is after an hour
    run(directory)
    check(directory)
    assert messages(directory).earliest == OLD_ROWS
    found = {str(path) for pattern in ("*.parquet", "*#*") for path in directory.rglob(pattern)}
    assert found == {file.path for file in sealed_files(directory)}, "files nobody lists"
    assert len(list(directory.glob("*/hot/messages-*"))) == 2, "only the one that is written"


def run_once(prepared: Path, call: int) -> bool:
    """Kill a recorder instead of this call, and check what is left. False: it made fewer calls."""
    directory = prepared.with_name(f"{call}")
    shutil.copytree(prepared, directory)
    has_died = dies_at(call, partial(run, directory))
    for then in (check, check_mended):
        assert in_child(partial(then, directory)) == 0, f"after a death at call {call}"
    shutil.rmtree(directory)
    return has_died


def run_all(directory: Path, first: int, step: int, jobs: int) -> int:
    """Run with a death at every `step`-th call, in so many runs at a time; returns how many deaths
    there were."""
    prepared = directory / "prepared"
    assert in_child(partial(prepare, prepared)) == 0
    for module in LOADED_WHEN_USED:
        importlib.import_module(module)
    calls, deaths = count(first, step), 0
    with get_context("fork").Pool(jobs) as pool:
        while died := sum(pool.map(partial(run_once, prepared), islice(calls, jobs))):
            deaths += died
    return deaths


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=int, default=1, help="the first of the calls")
    parser.add_argument("--step", type=int, default=1, help="from one of them to the next")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    options = parser.parse_args()
    if not is_preloaded():
        return preloaded(MODULE, sys.argv[1:])
    with tempfile.TemporaryDirectory() as directory:
        deaths = run_all(Path(directory), **vars(options))
    sys.stdout.write(f"{deaths} deaths, each before another write: every row is there once\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
