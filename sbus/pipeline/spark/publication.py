"""Publishing rows on a bus, over one connection.

Rows are checked before they are published: what the bus would refuse in any case is refused here,
with the whole batch of rows. A row that the bus refuses would be refused again, so it ends the
query, with the bus's reason.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import pyarrow as pa
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
"""After this many the bus is asked to confirm them. So a refusal is noticed soon, and the notices
about it do not pile up."""
ROWS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
"""Of checked rows."""
_SHOWN_CHARACTERS_MAX = 100

_OWN_FAULT = re.compile(r"\(key-too-(long|deep)\)$")
"""How the bus's reason ends when it disconnects a client for what it published."""


class RowsRefused(BusError):
    """A row cannot be published; the text says why."""


@dataclass(frozen=True)
class Publication:
    """Publishes rows on the bus at `socket`, under the key in their column or under `key`."""

    socket: str
    key: bytes | None

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The keys and payloads to publish. Raises RowsRefused."""
        values = batch["value"].cast(pa.binary())
        if self.key is not None:
            keys = [self.key] * batch.num_rows
        else:
            keys = list(map(_key_of, batch["key"].to_pylist()))
        if values.null_count:
            at = values.is_null().index(True).as_py()
            raise RowsRefused(f"the row with the key {_shown(keys[at])} has no value: it is null")
        return pa.record_batch([pa.array(keys, pa.binary()), values], schema=ROWS)

    def publish(
        self,
        batches: Iterable[pa.RecordBatch],
        first: int = 0,
        confirmed: Callable[[int], object] = lambda count: None,
    ) -> None:
        """Publish checked rows from the row `first` on. `confirmed` is told how many of all rows
        the bus has accepted.

        Raises RowsRefused; and AddressError, Disconnected, TimeoutError: then another attempt may
        succeed.
        """
        count = first
        rows = islice(_rows(batches), first, None)
        # Without rows there is no need for a bus.
        for row in rows:
            try:
                with connect(self.socket, timeout_seconds=ANSWER_SECONDS_MAX) as bus:
                    for key, value in chain([row], rows):
                        bus.publish(key, value, timeout_seconds=ANSWER_SECONDS_MAX)
                        count += 1
                        if count % SYNC_MESSAGES == 0:
                            bus.sync(timeout_seconds=ANSWER_SECONDS_MAX)
                            confirmed(count)
                    bus.sync(timeout_seconds=ANSWER_SECONDS_MAX)
            except (PacketRefused, Disconnected) as end:
                if isinstance(end, Disconnected) and not _OWN_FAULT.search(str(end)):
                    raise
                raise RowsRefused(f"the bus was sent {count} rows, then: {end}") from end


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, bytes]]:
    for batch in batches:
        yield from zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True)


def _key_of(key: bytes | str | None) -> bytes:
    if key is None:
        raise RowsRefused("a row has no key: it is null")
    try:
        name = from_text(key) if isinstance(key, str) else key
    except ValueError as error:
        raise RowsRefused(f"{_shown(key)} is no key: {error}") from error
    if b"\0" in name:
        raise RowsRefused(f"the key {_shown(name)} holds a NUL")
    if is_reserved(name, SLASH) and not is_secret_key(name):
        raise RowsRefused(f"the key {_shown(name)} is one that '!' reserves for the bus")
    return name


def _shown(key: bytes | str) -> str:
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
        wrong = "both column and option are" if "key" in kinds else "neither column nor option is"
        raise ConfigurationError(f"{wrong} called key: give one of them")
    return Publication(options.socket, options.key)
