"""Publishing the rows of a data frame, batch or stream: at least once.

Each task has its own connection, made with its first row, and is done when the bus has accepted
everything. Spark runs a task that fails again, which publishes all of its rows again. A row that
the bus refuses would be refused again, so it ends the query on the driver, with the bus's reason.

The bus is on one host, so all tasks must run there.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from sbus.client.blocking import connect
from sbus.errors import BusError, ConfigurationError, Disconnected, PacketRefused
from sbus.pipeline.spark.options import SinkOptions
from sbus.protocol.keys import SLASH, is_reserved
from sbus.protocol.secret_keys import is_secret_key
from sbus.protocol.text import from_text, to_text

ANSWER_SECONDS_MAX = 60.0
"""A bus that accepts and answers nothing for this long is taken for dead."""
SYNC_MESSAGES = 1_000
"""After this many, a task waits for the bus to confirm them. So a refusal ends the task soon, and
the notices about it do not pile up."""
_SHOWN_CHARACTERS_MAX = 100

_OWN_FAULT = re.compile(r"\(key-too-(long|deep)\)$")
"""How the bus's reason ends when it disconnects a client for what it published."""


class RowsRefused(BusError):
    """A row cannot be published; the text says why."""


@dataclass
class Published(WriterCommitMessage):
    """How many rows a task published; `refused` is why it did not publish all of them."""

    messages: int
    refused: str | None = None


@dataclass(frozen=True)
class Publication:
    """Publishes rows on the bus at `socket`, under the key in their column or under `key`."""

    socket: str
    key: bytes | None

    def publish(self, batches: Iterable[pa.RecordBatch]) -> Published:
        """Publish these rows; returns when the bus has accepted them, or refused one.

        Raises AddressError, Disconnected and TimeoutError; then another attempt may succeed.
        """
        count = 0
        try:
            messages = self._messages(batches)
            first = next(messages, None)
            if first is None:
                return Published(0)
            with connect(self.socket, timeout_seconds=ANSWER_SECONDS_MAX) as bus:
                for key, value in chain([first], messages):
                    bus.publish(key, value, timeout_seconds=ANSWER_SECONDS_MAX)
                    count += 1
                    if count % SYNC_MESSAGES == 0:
                        bus.sync(timeout_seconds=ANSWER_SECONDS_MAX)
                bus.sync(timeout_seconds=ANSWER_SECONDS_MAX)
        except (PacketRefused, RowsRefused) as refusal:
            return Published(count, str(refusal))
        except Disconnected as end:
            if not _OWN_FAULT.search(str(end)):
                raise
            return Published(count, str(end))
        return Published(count)

    def _messages(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes | str]]:
        for batch in batches:
            values = batch["value"].to_pylist()
            keys = batch["key"].to_pylist() if self.key is None else [self.key] * len(values)
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    raise RowsRefused(
                        f"the row with the key {_shown(key)} has no value: it is null"
                    )
                yield self._checked(key), value

    def _checked(self, key: bytes | str | None) -> bytes:
        if key is None:
            raise RowsRefused("a row has no key: it is null")
        try:
            name = from_text(key) if isinstance(key, str) else key
        except ValueError as error:
            raise RowsRefused(
                f"{_shown(key)} is no key: {error}; a byte is written \\xNN, a backslash \\\\"
            ) from error
        if b"\0" in name:
            raise RowsRefused(f"the key {_shown(name)} holds a NUL")
        if is_reserved(name, SLASH) and not is_secret_key(name):
            raise RowsRefused(f"the key {_shown(name)} is one that '!' reserves for the bus")
        return name


def _shown(key: bytes | str | None) -> str:
    """A key for an error text, of bounded length."""
    text = repr(to_text(key) if isinstance(key, bytes) else key)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"


def publication(options: SinkOptions, schema: StructType, overwrite: bool) -> Publication:
    """How to publish the columns `key` and `value`; others are ignored.

    Raises ConfigurationError for columns that cannot be published.
    """
    if overwrite:
        raise ConfigurationError("a bus keeps nothing that could be overwritten: use mode append")
    kinds = {field.name: field.dataType for field in schema.fields}
    for name in ("value", "key"):
        if name in kinds and not isinstance(kinds[name], StringType | BinaryType):
            raise ConfigurationError(
                f"the column {name} is {kinds[name].simpleString()}: cast it to string or binary"
            )
    if "value" not in kinds:
        raise ConfigurationError(f"no column is called value: there are {', '.join(kinds)}")
    if ("key" in kinds) == (options.key is not None):
        wrong = (
            "both a column and an option are" if "key" in kinds else "neither column nor option is"
        )
        raise ConfigurationError(f"{wrong} called key: give one of them")
    return Publication(options.socket, options.key)


class _Writer:
    def __init__(self, publication: Publication) -> None:
        self._publication = publication

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._publication.publish(iterator)

    def commit(
        self, messages: list[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """All tasks are done. Raises RowsRefused if the bus refused a row of one of them."""
        for task in messages:
            if isinstance(task, Published) and task.refused is not None:
                raise RowsRefused(
                    f"the bus was sent {task.messages} messages of a task, then: {task.refused}"
                )


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("sbus").mode("append")`."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`df.writeStream.format("sbus")`."""
