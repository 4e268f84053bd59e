"""Ends: what the exporter of a durable channel repeats while it has nothing to send.

What the stream has removed before an importer read it is missed when the next message of its origin
comes. For the case that none comes, there are ends. They do not go through the stream:

    PREFIX.e.CHANNEL.ORIGIN      Sbus: 1 EPOCH NUMBER VIA = = =      Sbus-Stored: SEQUENCE

NUMBER is that of the last message, and SEQUENCE the last place in the stream where a message of
this exporter is. Who has read the stream up to there has read everything that it has sent.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sbus.bridge.envelope import (
    HEADER,
    ORIGIN,
    Envelope,
    EnvelopeError,
    decode_envelope,
    encode_envelope,
)
from sbus.bridge.progress import ORIGINS_MAX

END_SECONDS: Final = 2.0
_STORED: Final = "Sbus-Stored"


class End(msgspec.Struct, frozen=True):
    """Of one origin."""

    envelope: Envelope
    stored: int
    """Where in the stream its last message is; 0 if it never sent any."""


def encode_end(end: End) -> dict[str, str]:
    """Its headers."""
    return {HEADER: encode_envelope(end.envelope), _STORED: str(end.stored)}


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
        headers = msg.headers or {}
        try:
            if not ORIGIN.fullmatch(origin):
                raise EnvelopeError("it has no origin")
            end = End(decode_envelope(headers.get(HEADER, "")), int(headers.get(_STORED, "")[:19]))
        except (EnvelopeError, ValueError) as error:
            self._report(msg.subject[:80], f"a message of {msg.subject[:80]} is refused: {error}")
            return
        if origin in self._ends or len(self._ends) < ORIGINS_MAX:
            self._ends[origin] = end

    def are_due(self, expected: int) -> bool:
        """Whether there are any that are due."""
        return any(end.stored < expected for end in self._ends.values())

    def due(self, expected: int) -> Iterator[tuple[str, End]]:
        """Those up to which the stream has been read, if this is the next place; each once."""
        for origin in [it for it, end in self._ends.items() if end.stored < expected]:
            yield origin, self._ends[origin]
            del self._ends[origin]
