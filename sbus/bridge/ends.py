"""Ends: what the exporter of a durable channel repeats while it has nothing to send.

What the stream has removed before an importer read it is missed when the next message of its origin
comes. For the case that none comes, there are ends. They do not go through the stream:

    PREFIX.e.CHANNEL.ORIGIN      Sbus: 1 EPOCH NUMBER VIA = = =      Sbus-Sequence: SEQUENCE

NUMBER is that of the last message of the origin. The stream had all of them up to SEQUENCE, so who
has read it up to there has read everything that the exporter has sent.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sbus.bridge.durable_messages import parse_number
from sbus.bridge.envelope import (
    HEADER,
    NUMBER_MAX,
    ORIGIN,
    Envelope,
    EnvelopeError,
    decode_envelope,
    encode_envelope,
)
from sbus.bridge.progress import ORIGINS_MAX

END_SECONDS: Final = 2.0
_SEQUENCE: Final = "Sbus-Sequence"


class End(msgspec.Struct, frozen=True):
    """Of one origin."""

    epoch: str
    number: int
    sequence: int


def encode_end(end: End, origin: str) -> dict[str, str]:
    """Its headers."""
    envelope = Envelope(end.epoch, end.number, origin)
    return {HEADER: encode_envelope(envelope), _SEQUENCE: str(end.sequence)}


def decode_end(headers: dict[str, str]) -> End:
    """Raises EnvelopeError."""
    envelope = decode_envelope(headers.get(HEADER, ""))
    sequence = parse_number(headers.get(_SEQUENCE, ""), _SEQUENCE)
    if not 0 <= sequence <= NUMBER_MAX:
        raise EnvelopeError(f"its header {_SEQUENCE} is out of range: {sequence}")
    return End(envelope.epoch, envelope.number, sequence)


class Ends:
    """Those of one channel that are not due yet: the stream has not been read up to there."""

    def __init__(self, prefix: str, channel: str, report: Callable[[str, str], None]) -> None:
        self._subject = f"{prefix}.e.{channel}"
        self._report = report
        self._ends: dict[str, End] = {}

    @asynccontextmanager
    async def heard(self, nc: Client) -> AsyncIterator[None]:
        """During the block, those that exporters tell are noted."""
        subscription = await nc.subscribe(f"{self._subject}.*", cb=self.hear)
        try:
            yield
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def hear(self, msg: Msg) -> None:
        """Note the newest one of an origin."""
        origin = msg.subject.removeprefix(f"{self._subject}.")
        try:
            if not ORIGIN.fullmatch(origin):
                raise EnvelopeError("it has no origin")
            end = decode_end(msg.headers or {})
        except EnvelopeError as error:
            self._report(msg.subject[:80], f"a message of {msg.subject[:80]} is refused: {error}")
            return
        if origin in self._ends or len(self._ends) < ORIGINS_MAX:
            self._ends[origin] = end
        else:
            self._report(f"{self._subject} full", f"{self._subject}: too many origins: {origin}")

    def waiting(self) -> dict[str, End]:
        """All that are not due yet."""
        return self._ends.copy()

    def bound(self, ends: dict[str, End], last: int) -> None:
        """When these were told, a stream whose last sequence is `last` had everything. If it has
        lost its last messages since, or was made anew, they end there."""
        for origin, end in ends.items():
            if self._ends.get(origin) is end and end.sequence > last:
                self._ends[origin] = msgspec.structs.replace(end, sequence=last)

    def are_due(self, expected: int) -> bool:
        """Whether there are any that are due."""
        return any(end.sequence < expected for end in self._ends.values())

    def due(self, expected: int) -> Iterator[tuple[str, End]]:
        """Those up to which the stream has been read, if this sequence is the next; each once. A
        newer one of an origin, which was heard while this one was handled, remains."""
        for origin, end in [it for it in self._ends.items() if it[1].sequence < expected]:
            yield origin, end
            if self._ends.get(origin) is end:
                del self._ends[origin]
