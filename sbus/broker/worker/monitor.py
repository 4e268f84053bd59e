"""Watching messages: what one worker tells those who asked for the messages of the bus.

A message is told by its publisher's worker, when it has its place in the order. The recipients that
other workers have for it are told by those, when they walk over it (`admin_streams` says how the
two are put together). So all workers ask of every key whether somebody watches it; the answer is
remembered.

What a message costs, while anybody watches, is a look into a dict; one that is told, a structure
more; a run, a packet more. This module does not know what is delivered, nor where a message waits.
"""

import time
from collections.abc import Callable, Iterable
from functools import lru_cache

from sbus.broker.events.stream_writer import StreamWriter
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Route
from sbus.broker.worker.session import Session
from sbus.protocol.admin_streams import (
    PART_BYTES_MAX,
    STREAM_PACKET_BYTES_MAX,
    Message,
    Messages,
    Part,
    Recipients,
)
from sbus.protocol.keys import Dialect, is_reserved, parse_pattern
from sbus.protocol.secret_keys import widened
from sbus.protocol.text import to_text
from sbus.routing.index import PatternIndex
from sbus.unix.peer_process import peer_program

_CACHE_BYTES_MAX = 1024 * 1024
"""Of what one watch remembers about keys, which are the clients' bytes."""
_BYTES_PER_KEY = 250
_JSON_BYTES_PER_KEY_BYTE = 5
"""At most: a byte that is no text is shown as `\\xNN`, with two backslashes in JSON."""
_JSON_BYTES_PER_MESSAGE = 150
_FULL_BYTES = STREAM_PACKET_BYTES_MAX // 4
"""A packet of messages is sent when it has so many: the next one may add half of the most."""
_COUNTS_MAX = 2_000
"""Messages whose recipients are told in one packet, 60 bytes each at most."""
_PROGRAMS_MAX = 4_096
"""Publishers whose program is remembered."""


class KeySelection:
    """Which keys a watch is about. No patterns: all, the secret ones included."""

    def __init__(self, patterns: Iterable[bytes], dialect: Dialect) -> None:
        self._dialect = dialect
        self._index: PatternIndex[None] | None = None
        for pattern in patterns:
            if self._index is None:
                self._index = PatternIndex(dialect)
            path = parse_pattern(widened(pattern), dialect)
            if path is not None:
                self._index.add(path, None)
        self._known: dict[bytes, tuple[str, bool] | None] = {}
        self._known_bytes = 0

    def get(self, key: bytes) -> tuple[str, bool] | None:
        """The key as text and whether it is a secret one; None if nobody asked for it."""
        try:
            return self._known[key]
        except KeyError:
            return self._look_up(key)

    def _look_up(self, key: bytes) -> tuple[str, bool] | None:
        found = None
        if self._index is None or self._index.match(key):
            found = (to_text(key), is_reserved(key, self._dialect))
        self._known_bytes += _BYTES_PER_KEY + _JSON_BYTES_PER_KEY_BYTE * len(key)
        if self._known_bytes > _CACHE_BYTES_MAX:
            self._known.clear()
            self._known_bytes = 0
        self._known[key] = found
        return found


class MessageStream:
    """One stream of messages, as this worker writes it. Owns `watcher`; `payload`: with what the
    messages hold."""

    def __init__(self, watcher: StreamWriter, selection: KeySelection, *, payload: bool) -> None:
        self.watcher = watcher
        self.selection = selection
        self.payload = payload
        self.counts: list[tuple[int, int, int]] = []
        """Recipients of what was walked and is not told yet."""


class MessageMonitor:
    """All streams of messages of worker `number`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._watches: dict[int, MessageStream] = {}
        self._programs: dict[int, str] = {}
        self._order = 0
        self._block = 0
        self._alive = 0

    def __bool__(self) -> bool:
        return bool(self._watches)

    def add_watch(self, number: int, watch: MessageStream) -> None:
        self._watches[number] = watch

    def remove_watch(self, number: int) -> None:
        """Forget a watch, if there is such a one."""
        watch = self._watches.pop(number, None)
        if watch is not None:
            watch.watcher.close()

    # -- what the sequencer tells ---------------------------------------------------------------
    def place(self, order_ns: int, block: int, alive: int) -> None:
        """What is published next got its place at this time, its block of the log at this
        position, and goes to those of its destinations that are alive."""
        self._order = order_ns
        self._block = block
        self._alive = alive

    def published(self, session: Session, batch: PublishBatch) -> None:
        """A client's messages have their place, and are delivered after this."""
        for watch in tuple(self._watches.values()):
            self._show_batch(watch, session, batch)

    def walked(
        self,
        block: int,
        numbers: list[int],
        entries: list[tuple[bytes, bytes]],
        route: Callable[[bytes], Route],
    ) -> None:
        """These entries of a block, with these numbers in it, are delivered after this."""
        for watch in tuple(self._watches.values()):
            select = watch.selection.get
            for number, (key, _) in zip(numbers, entries, strict=True):
                if select(key) is not None:
                    watch.counts.append((block, number, _recipients(route(key))))
            if len(watch.counts) >= _COUNTS_MAX:
                self._tell_counts(watch)

    def tell_walked(self) -> None:
        """A walk is at its end."""
        for watch in tuple(self._watches.values()):
            if watch.counts:
                self._tell_counts(watch)

    # -- pieces --------------------------------------------------------------------------------
    def _tell_counts(self, watch: MessageStream) -> None:
        counts, watch.counts = watch.counts, []
        watch.watcher.send(
            Recipients(source=watch.watcher.source, worker=self._number, counts=counts), 0
        )

    def _show_batch(self, watch: MessageStream, session: Session, batch: PublishBatch) -> None:
        select = watch.selection.get
        told: list[Message] = []
        told_bytes = 0
        entry = -1
        for packet, key, route in batch.messages:
            if route.mask:
                entry += 1
            selected = select(key)
            if selected is None:
                continue
            text, secret = selected
            payload = None
            told_bytes += _JSON_BYTES_PER_MESSAGE + _JSON_BYTES_PER_KEY_BYTE * len(key)
            payload_at = len(key) + 5
            if watch.payload and not secret:
                payload = packet[payload_at : payload_at + PART_BYTES_MAX]
                told_bytes += len(payload) * 4 // 3
            message = Message(
                key=text,
                size=None if secret else len(packet) - payload_at,
                recipients=_recipients(route),
                payload=payload,
                workers=_numbers(route.mask & self._alive),
                entry=entry,
            )
            told.append(message)
            if payload is not None and payload_at + PART_BYTES_MAX < len(packet):
                self._tell(watch, session, told, packet[payload_at + PART_BYTES_MAX :])
            elif told_bytes >= _FULL_BYTES:
                self._tell(watch, session, told)
            else:
                continue
            told, told_bytes = [], 0
        if told:
            self._tell(watch, session, told)

    def _tell(
        self, watch: MessageStream, session: Session, messages: list[Message], rest: bytes = b""
    ) -> None:
        """Tell messages; `rest` is what the last one holds besides what is told here."""
        own = session.credentials
        source = watch.watcher.source
        packet = Messages(
            source=source,
            missed=watch.watcher.missed,
            worker=self._number,
            time=time.time(),
            order=self._order,
            block=self._block,
            client=session.id,
            uid=own.uid,
            gid=own.gid,
            pid=own.pid,
            program=self._program(session),
            messages=messages,
        )
        parts = [
            Part(source=source, payload=rest[begin : begin + PART_BYTES_MAX])
            for begin in range(0, len(rest), PART_BYTES_MAX)
        ]
        watch.watcher.send(packet, len(messages), parts)

    def _program(self, session: Session) -> str:
        program = self._programs.get(session.id)
        if program is None:
            if len(self._programs) >= _PROGRAMS_MAX:
                self._programs.clear()
            program = to_text(peer_program(session.sock, session.credentials.pid))
            self._programs[session.id] = program
        return program


def _recipients(route: Route) -> int:
    """Clients of this worker that a message on this route is accepted for now."""
    return len([recipient for recipient in route.recipients if not recipient.is_closed])


@lru_cache(maxsize=1024)
def _numbers(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
