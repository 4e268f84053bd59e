"""Durable channels: a stream of JetStream between the buses, which keeps what was sent for a time.

The exporter keeps each message in its spool until the stream has it, and sends it again until then;
with the same id, by which the stream knows it. What is sent again may come behind what was sent
after it. So each message tells up to which number all were acknowledged before it was sent, or will
never be: what is missing up to there is lost, and anything else will still come.

The importer reads the stream in its order from where its `Progress` says, and delivers by ledger.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig

from sbus.bridge.configuration import Configuration, Durable
from sbus.bridge.envelope import (
    HEADER,
    ORIGIN,
    Crossing,
    Envelope,
    EnvelopeError,
    decode_envelope,
    encode_envelope,
)
from sbus.bridge.ledger import Gap, Ledger
from sbus.bridge.progress import RECORDS_MAX, Progress
from sbus.bridge.spool import Spool
from sbus.bridge.status import DurableStatus
from sbus.bridge.subjects import decode_key, encode_key
from sbus.client.connection import Connection
from sbus.errors import MessagesUnconfirmed, PacketRefused
from sbus.protocol.keys import SLASH

ACKED: Final = "Sbus-Acked"
MESSAGE_ID: Final = "Nats-Msg-Id"
CONTROL_LINE_BYTES: Final = 3_900
"""Of a subject: a server takes 4,096 bytes for the line that it is on, by default."""
_HEADERS_BYTES: Final = 512
"""Of a message's headers without the claim, at most."""
_BATCH: Final = 256
_ACK_SECONDS: Final = 5.0
_FETCH_SECONDS: Final = 1.0
_STREAM_RETRY_SECONDS: Final = 1.0
_DUPLICATES_SECONDS_MAX: Final = 3_600.0


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A message in the spool."""

    epoch: str
    number: int
    claim: str
    key: bytes
    payload: bytes


class Stored(msgspec.Struct, frozen=True):
    """A message of the stream, and its number there."""

    crossing: Crossing
    sequence: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def stream_name(prefix: str, channel: str) -> str:
    return f"{prefix.replace('.', '_')}_{channel}"


class DurableExport:
    """Of one channel; a `Port` of the exchange."""

    def __init__(
        self,
        status: DurableStatus,
        limits: Durable,
        prefix: str,
        plan: Configuration,
        report: Callable[[str, str], None],
    ) -> None:
        self.status = status
        self._report = report
        channel = status.channel
        self.name = f"{channel} (durable)"
        self.exports = frozenset((channel,))
        self._channel = channel
        self._limits = limits
        self._pattern_of = plan.channels[channel].pattern_of
        self._prefix = prefix
        self._origin = plan.origin
        self._spool = Spool(Path(plan.state) / f"{channel}.spool")
        self._message_bytes_max = 0
        """What the server takes."""
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()

    def send(self, crossing: Crossing) -> None:
        """Put this into the spool, unless that is full."""
        if self._spool.waiting_bytes > self._limits.bytes_max:
            self.status.give_up(self._pattern_of(crossing.key))
            return
        envelope = crossing.envelope
        record = Record(
            envelope.epoch, envelope.number, envelope.claim, crossing.key, crossing.payload
        )
        try:
            self._spool.append([_encoder.encode(record)])
        except OSError as error:
            self.status.give_up(self._pattern_of(crossing.key))
            self._report(f"{self.name} {error}", f"{self.name} is given up: {error}")
            return
        self.status.spool_bytes = self._spool.waiting_bytes
        self.news.set()
        if self._spool.waiting_bytes > self._limits.bytes_max // 2:
            self.room.clear()

    def beat(self, channel: str, origin: str, envelope: Envelope) -> None:
        """A stream loses nothing at its end."""

    async def run(self, nc: Client) -> None:
        """Send what is in the spool, until cancelled."""
        js = nc.jetstream(timeout=_ACK_SECONDS)
        self._message_bytes_max = nc.max_payload
        await self._make_stream(js)
        while True:
            self.news.clear()
            records, end = self._spool.first(_BATCH)
            if records:
                await self._send(js, [_decoder.decode(record) for record in records])
                self._spool.release(end)
                self.status.spool_bytes = self._spool.waiting_bytes
                self.room.set()
            else:
                await self.news.wait()

    async def _make_stream(self, js: JetStreamContext) -> None:
        name = stream_name(self._prefix, self._channel)
        try:
            await js.stream_info(name)
        except nats.js.errors.NotFoundError:
            keep_seconds = self._limits.hours_max * 3600
            await js.add_stream(
                StreamConfig(
                    name=name,
                    subjects=[f"{self._prefix}.d.{self._channel}.>"],
                    max_age=keep_seconds,
                    max_bytes=self._limits.bytes_max,
                    num_replicas=self._limits.replicas,
                    duplicate_window=min(keep_seconds, _DUPLICATES_SECONDS_MAX),
                )
            )

    async def _send(self, js: JetStreamContext, records: list[Record]) -> None:
        """Returns once the stream has all of them; one run of numbers after the other, so each
        message tells that everything before its run was acknowledged, or will never be sent."""
        fitting = []
        for record in records:
            if self._fits(record):
                fitting.append(record)
            else:
                self.status.give_up(self._pattern_of(record.key))
                self._report(f"{self.name} size", f"{self.name}: a message is too large for NATS")
        for run in _runs(fitting):
            acked = str(run[0].number - 1)
            acks = [await self._send_one(js, record, acked) for record in run]
            for ack in acks:
                await asyncio.wait_for(ack, _ACK_SECONDS)
            self.status.sent += len(run)

    def _fits(self, record: Record) -> bool:
        """Whether the server takes it."""
        size_bytes = len(record.payload) + len(record.claim) + _HEADERS_BYTES
        subject = self._subject_of(record)
        return len(subject) <= CONTROL_LINE_BYTES and size_bytes <= self._message_bytes_max

    def _subject_of(self, record: Record) -> str:
        return f"{self._prefix}.d.{self._channel}.{self._origin}.{encode_key(record.key, SLASH)}"

    async def _send_one(
        self, js: JetStreamContext, record: Record, acked: str
    ) -> asyncio.Future[Any]:
        envelope = Envelope(record.epoch, record.number, self._origin, record.claim)
        identity = f"{self._origin}/{record.epoch}/{self._channel}/{record.number}"
        headers = {HEADER: encode_envelope(envelope), MESSAGE_ID: identity, ACKED: acked}
        return await js.publish_async(
            self._subject_of(record), record.payload, wait_stall=_ACK_SECONDS, headers=headers
        )


def _runs(records: list[Record]) -> list[list[Record]]:
    """Those of one epoch with consecutive numbers together."""
    runs: list[list[Record]] = []
    for record in records:
        last = runs[-1][-1] if runs else None
        if last and (last.epoch, last.number + 1) == (record.epoch, record.number):
            runs[-1].append(record)
        else:
            runs.append([record])
    return runs


class StreamReader:
    """Reads the stream of one channel; what is derived from it says where the messages go."""

    batch_messages_max = _BATCH
    reads_all = False
    """Whether its first start reads what the stream has, not only what is sent from then on."""

    def __init__(
        self,
        status: DurableStatus,
        prefix: str,
        plan: Configuration,
        report: Callable[[str, str], None],
    ) -> None:
        channel = status.channel
        self.name = f"{channel} (durable)"
        self.status = status
        self.report = report
        self._channel = channel
        self._prefix = prefix
        self._own = plan.origin
        self.progress = Progress(Path(plan.state) / f"{channel}.progress")
        self.ledgers: dict[str, Ledger[Stored]] = self.progress.ledgers()

    async def run(self, nc: Client) -> None:
        """Deliver what comes, until cancelled."""
        js = nc.jetstream(timeout=_ACK_SECONDS)
        self.ledgers = self.progress.ledgers()  # what waited comes again
        name = stream_name(self._prefix, self._channel)
        await self._find_beginning(js, name)
        consumer = await js.pull_subscribe(
            f"{self._prefix}.d.{self._channel}.>",
            stream=name,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self.progress.next_in_stream,
                ack_policy=AckPolicy.ALL,
                max_ack_pending=4 * self.batch_messages_max,
                inactive_threshold=60.0,
            ),
        )
        while True:
            self.status.is_importing = True
            try:
                batch = await consumer.fetch(self.batch_messages_max, timeout=_FETCH_SECONDS)
            except TimeoutError:
                continue
            if batch:
                await self.deliver(batch)
                await batch[-1].ack()

    async def _find_beginning(self, js: JetStreamContext, name: str) -> None:
        """Wait until there is a stream; without progress so far, begin at its end."""
        while True:
            try:
                state = (await js.stream_info(name)).state
                break
            except nats.js.errors.NotFoundError:
                await asyncio.sleep(_STREAM_RETRY_SECONDS)
        reached = self.progress.next_in_stream
        if reached == 0:
            self.progress.next_in_stream = 1 if self.reads_all else state.last_seq + 1
        elif reached > state.last_seq + 1:
            self.report(f"{name} anew", f"stream {name} was made anew: read from its beginning")
            self.progress.next_in_stream = 1

    async def deliver(self, batch: list[Msg]) -> None:
        """Bring what these make deliverable to where it goes, and note the progress."""
        raise NotImplementedError

    def feed(self, msg: Msg) -> tuple[str, list[Crossing | Gap]]:
        """The origin of a message, and what it makes deliverable."""
        found = self._parse(msg)
        if found is None or found[0].origin == self._own:
            return "", []
        crossing, acked = found
        self.status.received += 1
        origin, envelope = crossing.origin, crossing.envelope
        ledger = self.ledgers.get(origin)
        if ledger is None:
            if len(self.ledgers) >= RECORDS_MAX // 2:  # anybody can invent one
                self.report(f"{self.name} full", f"{self.name}: too many origins: {origin}")
                return "", []
            ledger = Ledger(envelope.epoch, acked) if self.reads_all else Ledger()
            self.ledgers[origin] = ledger
        stored = Stored(crossing, msg.metadata.sequence.stream)
        now = asyncio.get_running_loop().time()
        given = ledger.feed(("stream",), envelope.epoch, envelope.number, stored, now, acked)
        return origin, [item if isinstance(item, Gap) else item.crossing for item in given]

    def first_held(self, after: int) -> int:
        """Where to begin again, so that messages that wait for others come again."""
        held = (it.sequence for ledger in self.ledgers.values() for it in ledger.waiting())
        return min([after, *held])

    def _parse(self, msg: Msg) -> tuple[Crossing, int] | None:
        below = msg.subject.removeprefix(f"{self._prefix}.d.{self._channel}.")
        origin, _, tokens = below.partition(".")
        key = decode_key(tokens, SLASH)
        headers = msg.headers or {}
        try:
            if key is None or not ORIGIN.fullmatch(origin):
                raise EnvelopeError(f"its subject is that of no key: {msg.subject[:80]!r}")
            envelope = decode_envelope(headers.get(HEADER, ""))
            acked = max(0, min(int(headers.get(ACKED, "0")[:19]), envelope.number - 1))
        except (EnvelopeError, ValueError) as error:
            self.report(msg.subject[:80], f"a message of {msg.subject[:80]} is refused: {error}")
            return None
        return Crossing(self._channel, origin, envelope, key, msg.data), acked


class DurableImport(StreamReader):
    """Publishes a channel on the local bus."""

    def __init__(
        self,
        status: DurableStatus,
        prefix: str,
        plan: Configuration,
        messages_of: Callable[[str, str, str, Crossing | Gap], list[tuple[bytes, bytes]]],
        report: Callable[[str, str], None],
    ) -> None:
        """`messages_of` gives the keys and payloads to publish for what is delivered."""
        super().__init__(status, prefix, plan, report)
        self.bus: Connection[Any]
        """Set before it runs; nobody else publishes there."""
        self._messages_of = messages_of
        self._confirmed: bytes | None = None
        """The progress before what the bus has not confirmed yet."""

    async def deliver(self, batch: list[Msg]) -> None:
        """Publish what these make deliverable; returns when the bus has it."""
        self._confirmed = self._confirmed or self.progress.snapshot()
        try:
            for msg in batch:
                await self._take(msg)
            try:
                await self.bus.sync()
            except PacketRefused as refused:
                self.report(refused.code, f"the local bus refused a message: {refused}")
        except MessagesUnconfirmed:
            self.progress.restore(self._confirmed)
            self._confirmed = None
            raise
        self._confirmed = None
        newest = batch[-1].metadata
        self.status.behind = newest.num_pending
        self.progress.next_in_stream = self.first_held(newest.sequence.stream + 1)

    async def _take(self, msg: Msg) -> None:
        origin, items = self.feed(msg)
        for item in items:
            epoch = self.ledgers[origin].epoch
            for key, payload in self._messages_of(self._channel, origin, epoch, item):
                await self.bus.publish(key, payload)
            if isinstance(item, Crossing):
                self.progress.note(origin, item.envelope.epoch, item.envelope.number)
