"""Watching messages: what one worker sends to those who asked for the messages of the bus.

The publisher's worker shows a message when it has its place in the order. Other workers send the
number of recipients that they have for it when they walk over it; `sbus.protocol.admin_streams`
says how the two are joined. So every worker finds out for every key whether a stream selects it,
and remembers that.

What the bus publishes itself is shown as well: the messages that tell of names, and last wills. All
of their recipients are counted in walks, those of the publisher's own worker too.

The same reports are counted while a sample of traffic is taken (`traffic_sampler`).

While any stream is open, no message is ordinary, and a message costs a look into a dict for each
stream. For each stream that shows it and has room, it is put into a packet, encoded and sent, which
takes longer than to publish it. The publisher's user is charged for that time. While a stream has
no room, what it misses is only counted.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from sbus.broker.events.stream_writer import StreamWriter
from sbus.broker.ipc.worker_protocol import TrafficSample
from sbus.broker.worker.publish_batch import Message, PublishBatch
from sbus.broker.worker.router import Route
from sbus.broker.worker.session import Session
from sbus.broker.worker.traffic_sampler import TrafficSampler
from sbus.protocol.admin_streams import (
    PART_BYTES_MAX,
    STREAM_PACKET_BYTES_MAX,
    Messages,
    Part,
    Recipients,
)
from sbus.protocol.keys import Dialect, is_reserved, parse_pattern
from sbus.protocol.packets import NUL
from sbus.protocol.presence_keys import begins_presence
from sbus.protocol.secret_keys import widened
from sbus.protocol.text import to_text
from sbus.routing.index import PatternIndex
from sbus.routing.route_cache import RouteCache
from sbus.shared.log_block import HAND_OVER, Publisher
from sbus.unix.peer_process import peer_program

_CACHE_BYTES_MAX = 1024 * 1024
"""Of what one stream remembers about keys, which clients choose."""
_NOT_SELECTED = ("", False)
_JSON_BYTES_PER_KEY_BYTE = 5
"""At most: a byte that is not text is shown as `\\xNN`, with two backslashes in JSON."""
_JSON_BYTES_PER_MESSAGE = 32
_JSON_BYTES_PER_WORKER = 3
_FULL_BYTES = STREAM_PACKET_BYTES_MAX // 4
"""A packet of messages is sent when it has this size: the next message may add twice as much."""
_PROGRAMS_MAX = 4_096
"""Publishers whose program is remembered."""


class KeySelection:
    """The keys that a stream shows. Without patterns: all, secret ones included."""

    def __init__(self, patterns: Iterable[bytes], dialect: Dialect) -> None:
        self._dialect = dialect
        self._index: PatternIndex[None] | None = None
        for pattern in patterns:
            if self._index is None:
                self._index = PatternIndex(dialect)
            path = parse_pattern(widened(pattern), dialect)
            if path is not None:
                self._index.add(path, None)
        self._cache: RouteCache[tuple[str, bool]] = RouteCache(self._find, _CACHE_BYTES_MAX)

    def get(self, key: bytes) -> tuple[str, bool] | None:
        """The key as text and whether it is secret; None if it is not selected."""
        selected = self._cache.recent.get(key) or self._cache.look_up(key)
        return None if selected is _NOT_SELECTED else selected

    def count(self, messages: Sequence[Message]) -> int:
        """How many of these messages are selected."""
        if self._index is None:
            return len(messages)
        return sum(self.get(key) is not None for _, key, _ in messages)

    def _find(self, key: bytes) -> tuple[tuple[str, bool], int]:
        """What is cached for a key, and the bytes that takes."""
        if self._index is not None and not self._index.match(key):
            return _NOT_SELECTED, 0
        text_bytes = _JSON_BYTES_PER_KEY_BYTE * len(key)
        is_secret = is_reserved(key, self._dialect) and not begins_presence(key)
        return (to_text(key), is_secret), text_bytes


class MessageStream:
    """One stream of messages, as this worker writes it. Owns `writer`; `payload`: whether it shows
    the payloads."""

    def __init__(self, writer: StreamWriter, selection: KeySelection, *, payload: bool) -> None:
        self.writer = writer
        self.selection = selection
        self.payload = payload


class _Shown:
    """The columns of a packet of messages, and what it takes at most as JSON."""

    __slots__ = ("bytes", "entries", "keys", "payloads", "recipients", "sizes", "workers")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.sizes: list[int | None] = []
        self.recipients: list[int] = []
        self.workers: list[tuple[int, ...]] = []
        self.entries: list[int] = []
        self.payloads: list[bytes] = []
        self.bytes = 0


class MessageMonitor:
    """All streams of messages that one worker writes."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._streams: dict[int, MessageStream] = {}
        self._sampler: TrafficSampler | None = None
        self.is_watched = False
        self._programs: dict[int, str] = {}
        self._order = 0
        self._log_position = 0
        self._alive = 0

    def add_stream(self, number: int, stream: MessageStream) -> None:
        self._streams[number] = stream
        self._note_watchers()

    def remove_stream(self, number: int) -> None:
        """Forget a stream, if it exists."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.writer.close()
        self._note_watchers()

    def start_sampling(self) -> None:
        """Count who exchanges how many messages from now on."""
        self._sampler = TrafficSampler()
        self._note_watchers()

    def stop_sampling(self, sessions: Iterable[Session]) -> TrafficSample:
        """What these clients of this worker were counted for."""
        sampler, self._sampler = self._sampler or TrafficSampler(), None
        self._note_watchers()
        return sampler.sample(sessions)

    def _note_watchers(self) -> None:
        self.is_watched = bool(self._streams or self._sampler)

    # -- what the sequencer reports ------------------------------------------------------------
    def place(self, order_ns: int, log_position: int, alive: int) -> None:
        """What is published next has its place: in the order at this time, in the log at this
        position. It goes to those of its destinations that are alive."""
        self._order = order_ns
        self._log_position = log_position
        self._alive = alive

    def published(self, batch: PublishBatch) -> None:
        """The messages of a publish batch are about to be delivered."""
        if self._sampler is not None:
            self._sampler.published(batch)
        self.announced(batch.session.publisher, batch.session, batch.messages)

    def announced(
        self, publisher: Publisher, session: Session | None, messages: Sequence[Message]
    ) -> None:
        """These messages are about to be delivered. `session` is the publisher's; None if it has
        gone."""
        for stream in tuple(self._streams.values()):
            if stream.writer.has_room:
                self._show(stream, publisher, session, messages)
            else:
                stream.writer.count_missed(stream.selection.count(messages))

    def walked(
        self,
        log_position: int,
        publisher: int,
        numbers: list[int],
        keys: list[bytes],
        look_up: Callable[[bytes], Route],
    ) -> None:
        """Entries with these numbers in the log block here, which this client published, are about
        to be delivered."""
        if self._sampler is not None:
            self._sampler.walked(publisher, map(look_up, keys))
        for stream in tuple(self._streams.values()):
            if not stream.writer.has_room:
                continue
            select = stream.selection.get
            shown = [
                (number, key)
                for number, key in zip(numbers, keys, strict=True)
                if key != HAND_OVER and select(key.removesuffix(NUL)) is not None
            ]
            if shown:
                packet = Recipients(
                    source=stream.writer.source,
                    worker=self._worker,
                    block=log_position,
                    entries=[number for number, _ in shown],
                    recipients=[_recipients(look_up(key)) for _, key in shown],
                )
                stream.writer.send(packet, 0)

    # -- pieces --------------------------------------------------------------------------------
    def _show(
        self,
        stream: MessageStream,
        publisher: Publisher,
        session: Session | None,
        messages: Sequence[Message],
    ) -> None:
        select = stream.selection.get
        shown = _Shown()
        entry = -1
        for packet, key, route in messages:
            if route.mask:
                entry += 1
            selected = select(key)
            if selected is None:
                continue
            text, is_secret = selected
            shown.keys.append(text)
            payload_at = len(key) + 5
            shown.sizes.append(None if is_secret else len(packet) - payload_at)
            shown.recipients.append(_recipients(route))
            workers = _numbers(route.mask & self._alive)
            shown.workers.append(workers)
            shown.entries.append(entry)
            shown.bytes += _JSON_BYTES_PER_MESSAGE + _JSON_BYTES_PER_KEY_BYTE * len(key)
            shown.bytes += _JSON_BYTES_PER_WORKER * len(workers)
            if stream.payload and not is_secret:
                shown.payloads.append(packet[payload_at:])
                shown.bytes += (len(packet) - payload_at) * 4 // 3
            if shown.bytes >= _FULL_BYTES:
                self._send(stream, publisher, session, shown)
                shown = _Shown()
        if shown.keys:
            self._send(stream, publisher, session, shown)

    def _send(
        self, stream: MessageStream, publisher: Publisher, session: Session | None, shown: _Shown
    ) -> None:
        source = stream.writer.source
        payloads = b"".join(shown.payloads)
        is_elsewhere = any(shown.workers)
        packet = Messages(
            source=source,
            missed=stream.writer.missed,
            worker=self._worker,
            time=time.time(),
            order=self._order,
            block=self._log_position,
            client=publisher.client,
            uid=publisher.uid,
            gid=publisher.gid,
            pid=publisher.pid,
            program=self._program(publisher.client, session),
            keys=shown.keys,
            sizes=shown.sizes,
            recipients=shown.recipients,
            payloads=payloads[:PART_BYTES_MAX] if stream.payload else None,
            workers=shown.workers if is_elsewhere else [],
            entries=shown.entries if is_elsewhere else [],
        )
        rest = [
            Part(source=source, payload=payloads[begin : begin + PART_BYTES_MAX])
            for begin in range(PART_BYTES_MAX, len(payloads), PART_BYTES_MAX)
        ]
        stream.writer.send(packet, len(shown.keys), rest)

    def _program(self, client: int, session: Session | None) -> str:
        program = self._programs.get(client)
        if program is None:
            if session is None:
                return ""
            if len(self._programs) >= _PROGRAMS_MAX:
                self._programs.clear()
            program = to_text(peer_program(session.sock, session.credentials.pid))
            self._programs[client] = program
        return program


def _recipients(route: Route) -> int:
    """How many clients of this worker a message on this route is accepted for now."""
    return len([recipient for recipient in route.recipients if not recipient.is_closed])


@lru_cache(maxsize=1024)
def _numbers(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
