"""Streams of the messages and events of a bus.

A stream needs a connection to the admin socket for itself. A slow reader misses some of it, and
learns how much; the bus never waits for a reader.
"""

import heapq
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from sbus.client.admin import AdminConnection
from sbus.client.message_joiner import (
    MessageJoiner,
    MissedCounts,
    MissedItems,
    MonitoredBatch,
    MonitoredMessage,
)
from sbus.errors import BusError, Disconnected, ProtocolViolation
from sbus.protocol import admin
from sbus.protocol.admin_results import EventsResult, MonitorResult
from sbus.protocol.admin_streams import BEGINNING, Ended, Events, Missed
from sbus.protocol.text import to_text

EVENTS_WINDOW_SECONDS = 0.05
"""How long an event waits for earlier ones from other processes."""
_PACKETS_AT_ONCE_MAX = 1_000

_decoder: msgspec.json.Decoder[Events | Missed] = msgspec.json.Decoder(Events | Missed)
_ENDED = BEGINNING + b'"ended"'
_ended_decoder = msgspec.json.Decoder(Ended)

T = TypeVar("T")


def _understood(decoder: msgspec.json.Decoder[T], packet: bytes) -> T:
    """Raises ProtocolViolation."""
    try:
        return decoder.decode(packet)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"not a packet of a stream: {error}") from error


class Stream(ABC, Generic[T]):
    """The common part of `MessageStream` and `EventStream`; `unanswered` are the workers on which
    it has not begun yet."""

    def __init__(self, connection: AdminConnection, unanswered: list[int]) -> None:
        self.unanswered = unanswered
        self._connection = connection
        self._ended: BusError | None = None

    def receive_many(self, timeout_seconds: float | None = None) -> list[T]:
        """What has arrived; waits until there is something or the time is up.

        Raises Disconnected when the bus has ended and everything was read, ProtocolViolation.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not (found := self._take()):
            if self._ended is not None:
                raise self._ended
            now = time.monotonic()
            until = [at for at in (deadline, self._next_at()) if at is not None]
            if not self._receive(max(0.0, min(until) - now) if until else None) and (
                deadline is not None and time.monotonic() >= deadline
            ):
                return self._take()
        return found

    def _receive(self, timeout_seconds: float | None) -> bool:
        """Read what there is, waiting for the first packet; False if none came."""
        for count in range(_PACKETS_AT_ONCE_MAX):
            try:
                packet = self._connection.receive(0 if count else timeout_seconds)
            except TimeoutError:
                return count > 0
            except BusError as error:
                self._ended = error
                return True
            if packet.startswith(_ENDED):
                self._ended = Disconnected(_understood(_ended_decoder, packet).why)
                return True
            self._feed(packet)
        return True

    @abstractmethod
    def _feed(self, packet: bytes) -> None:
        """Take in a packet of the stream."""

    @abstractmethod
    def _take(self) -> list[T]:
        """What is complete, or everything when the stream has ended."""

    @abstractmethod
    def _next_at(self) -> float | None:
        """When `_take` returns something even if nothing comes; None if never."""


class _MonitorStream(Stream[T]):
    """The common part of `MessageStream` and `BatchStream`."""

    def __init__(
        self, connection: AdminConnection, patterns: Iterable[bytes] = (), *, payload: bool = False
    ) -> None:
        texts = [to_text(pattern) for pattern in patterns]
        begun = connection.ask(admin.Monitor(patterns=texts, payload=payload), MonitorResult)
        super().__init__(connection, begun.unanswered)
        self._joiner = MessageJoiner(begun.order)

    def _feed(self, packet: bytes) -> None:
        self._joiner.feed(packet, time.monotonic())

    def _take_batches(self) -> list[MonitoredBatch | MissedItems]:
        items = self._joiner.take(math.inf if self._ended else time.monotonic())
        for item in items:
            if isinstance(item, MonitoredBatch):
                item.packet = self._connection.program_names.in_client(item.packet)
        return items

    def _next_at(self) -> float | None:
        return self._joiner.next_at()


class MessageStream(_MonitorStream[MonitoredMessage | MissedItems]):
    """The messages of a bus whose key matches one of `patterns`, or all; with their payload if that
    is requested. Of secret messages only the key is shown.

    Raises AdminError, Disconnected, ProtocolViolation.
    """

    def _take(self) -> list[MonitoredMessage | MissedItems]:
        found: list[MonitoredMessage | MissedItems] = []
        for item in self._take_batches():
            found += item.messages() if isinstance(item, MonitoredBatch) else [item]
        return found


class BatchStream(_MonitorStream[MonitoredBatch | MissedItems]):
    """The same messages, a publish batch at a time."""

    def _take(self) -> list[MonitoredBatch | MissedItems]:
        return self._take_batches()


class EventStream(Stream[dict[str, Any] | MissedItems]):
    """The events of a bus, each with its `time`, `event` (the id), `priority`, `text` and the
    fields of its kind.

    Raises AdminError, Disconnected, ProtocolViolation.
    """

    def __init__(self, connection: AdminConnection) -> None:
        begun = connection.ask(admin.Events(), EventsResult)
        super().__init__(connection, begun.unanswered)
        self._missed_counts = MissedCounts()
        self._missed = 0
        self._heap: list[tuple[float, int, float, dict[str, Any]]] = []
        """Events by their time, each with the time of its arrival."""
        self._fed = 0

    def _feed(self, packet: bytes) -> None:
        part = _understood(_decoder, packet)
        self._missed += self._missed_counts.note(part.source, part.missed)
        now = time.monotonic()
        for event in part.events if isinstance(part, Events) else ():
            self._fed += 1
            self._connection.program_names.set_in_event(event)
            heapq.heappush(self._heap, (event["time"], self._fed, now, event))

    def _take(self) -> list[dict[str, Any] | MissedItems]:
        found: list[dict[str, Any] | MissedItems] = []
        if self._missed > 0:
            found.append(MissedItems(self._missed))
            self._missed = 0
        while (at := self._next_at()) is not None and at <= time.monotonic():
            found.append(heapq.heappop(self._heap)[3])
        return found

    def _next_at(self) -> float | None:
        ended = self._ended is not None
        return self._heap[0][2] + (0 if ended else EVENTS_WINDOW_SECONDS) if self._heap else None
