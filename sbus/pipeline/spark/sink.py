"""Publishing the rows of a data frame: the tasks of a batch, or the driver for a stream.

A batch is published at least once. Each task has its own connection, and is done when the bus has
accepted everything; if it fails, Spark runs it again, and it publishes all of its rows again.

Of a stream, tasks stage their rows, and when all are done the driver publishes what they staged
(`staging.py`). So a repeated batch publishes nothing again. If the driver dies while it publishes,
the rows since the last confirmation, at most `SYNC_MESSAGES`, may be published twice: only the bus
knows them.

The bus is on one host, so the tasks of a batch, or the driver of a stream, must run there.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from sbus.pipeline.spark.publication import ROWS, SYNC_MESSAGES, Publication, RowsRefused
from sbus.pipeline.spark.staging import Ledger, Staging


@dataclass
class Done(WriterCommitMessage):
    """What a task has done; `refused` is why it could not. A task that raised this itself would be
    tried again."""

    staged: str | None = None
    refused: str | None = None


def _check(messages: Sequence[WriterCommitMessage | None]) -> list[Done]:
    """Raises RowsRefused if one of the tasks had a row that cannot be published."""
    done = [task for task in messages if isinstance(task, Done)]
    if refusals := [task.refused for task in done if task.refused is not None]:
        raise RowsRefused(refusals[0])
    return done


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("sbus").mode("append")`."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        try:
            self._publication.publish(map(self._publication.checked, iterator))
        except RowsRefused as refusal:
            return Done(refused=str(refusal))
        return Done()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _check(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("sbus")`."""

    def __init__(self, publication: Publication, staging: Staging) -> None:
        self._publication = publication
        self._staging = staging

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        rows = map(self._publication.checked, iterator)
        try:
            first = next(rows, None)
            if first is None:
                return Done()
            return Done(staged=self._staging.stage(chain([first], rows), ROWS))
        except RowsRefused as refusal:
            return Done(refused=str(refusal))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the batch, or the rest of it. Raises RowsRefused, AddressError, Disconnected,
        TimeoutError, OSError."""
        staged = [task.staged for task in _check(messages) if task.staged is not None]
        with self._staging.locked():
            ledger = self._staging.load()
            if ledger is None or ledger.batch < batchId:
                ledger = Ledger(batchId, staged)
                self._staging.save(ledger)
            elif ledger.files:
                first, end = ledger.published, ledger.published + SYNC_MESSAGES
                warnings.warn(
                    f"sbus: a driver ended while it published batch {ledger.batch}: of its rows "
                    f"{first} to {end} some may be published twice",
                    stacklevel=2,
                )
            self._staging.delete_others(ledger.files)
            if ledger.files:
                self._publish(ledger)

    def _publish(self, ledger: Ledger) -> None:
        def confirmed(count: int) -> None:
            ledger.published = count
            self._staging.save(ledger)

        rows = self._staging.rows(ledger.files)
        self._publication.publish(rows, ledger.published, confirmed)
        ledger.files.clear()
        self._staging.save(ledger)
        self._staging.delete_others([])
