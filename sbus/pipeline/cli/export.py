"""`sbusctl export`: a table of a recording as one file, without Spark."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sbus.cli.optional_packages import needs_packages
from sbus.pipeline.cli.job_command import LIMITS, takes
from sbus.unix.private_files import keep_new_files_private

if TYPE_CHECKING:
    import pyarrow as pa

_EXTRAS = dict.fromkeys(("pyarrow", "numpy", "deltalake"), "recorder")


@click.command(
    epilog="""\b
Examples:
  sbusctl export /var/lib/sbus/recording march.parquet --since 2026-03-01
  sbusctl export ~/recording events.csv --table events"""
)
@click.argument("location", type=click.Path(), metavar="RECORDING")
@click.argument("out", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--table",
    type=click.Choice(["messages", "clients", "events"]),
    default="messages",
    show_default=True,
)
@takes(*LIMITS)
def export(location: str, out: Path, table: str, **limits: Any) -> None:
    """Write a table of a recording to FILE.parquet, FILE.csv or FILE.json, recorder by recorder.

    In CSV and JSON, payloads are text like keys: bytes that are not UTF-8 as \\xNN, a backslash
    doubled. Only you may read the file, as with `sbusctl record`.
    """
    with needs_packages(_EXTRAS):
        from sbus.pipeline.cli.results import check_output, write_rows
        from sbus.pipeline.store.schemas import TABLES

        check_output(out)
        keep_new_files_private()
        write_rows(_rows(location, table, **limits), TABLES[table], out)


def _rows(
    location: str,
    table: str,
    since: datetime | None,
    until: datetime | None,
    hosts: Sequence[str],
) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    from sbus.pipeline.store.reader import Recording, read
    from sbus.pipeline.store.schemas import timestamp_us

    recording = Recording(location)
    recording.check()
    since_us = 0 if since is None else timestamp_us(since)
    until_us = 2**62 if until is None else timestamp_us(until)
    for snapshot in recording.tables(table).values():
        for piece in snapshot.plan(snapshot.earliest, snapshot.end):
            if piece.file.may_hold(since_us, until_us, hosts):
                for batch in read(piece):
                    stamps_us = batch["timestamp"].cast(pa.int64()).to_numpy()
                    wanted = (stamps_us >= since_us) & (stamps_us < until_us)
                    yield batch.filter(pa.array(wanted))
