"""Exporting a durable channel: what the bus brings goes into the spool, and from there to the
stream."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import PubAck, StreamConfig, StreamInfo

from sbus.bridge.configuration import Durable
from sbus.bridge.durable import ACK_SECONDS, BATCH
from sbus.bridge.durable_messages import ACKED, MESSAGE_ID, stream_name, subjects_of
from sbus.bridge.ends import END_SECONDS, End, encode_end
from sbus.bridge.envelope import HEADER, Crossing, Envelope, encode_envelope
from sbus.bridge.exchange import Exchange, Numbers
from sbus.bridge.spool import BRIDGES_MAX, Reached, Spool
from sbus.bridge.status import DurableStatus
from sbus.bridge.subjects import encode_key
from sbus.protocol.keys import SLASH
from sbus.protocol.packets import Message

CONTROL_LINE_BYTES: Final = 3_900
"""Of a subject: a server takes 4,096 bytes for the line that it is on, by default."""
_HEADERS_BYTES: Final = 512
"""Of a message's headers without the claim, at most."""
_DUPLICATES_SECONDS_MAX: Final = 3_600.0


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A message in the spool."""

    epoch: str
    number: int
    claim: str
    key: bytes
    payload: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class DurableExport:
    """Of one channel; a `Sink` of its reader."""

    def __init__(
        self,
        status: DurableStatus,
        prefix: str,
        exchange: Exchange,
        report: Callable[[str, str], None],
    ) -> None:
        self.status = status
        self.report = report
        self._channel = status.channel
        self.name = f"{self._channel} (durable)"
        self._prefix = prefix
        plan = exchange.plan
        self._limits = plan.channels[self._channel].durable or Durable()
        self._pattern_of = plan.channels[self._channel].pattern_of
        self._origin = plan.origin
        self._claim_of = exchange.claim_of
        self.spool = Spool(Path(plan.state) / f"{self._channel}.spool")
        self._numbers = Numbers()
        self._batch: list[Record] = []
        """What goes into the spool next."""
        self._batch_bytes = 0
        self._message_bytes_max = 0
        """What the server takes."""
        self._news = asyncio.Event()
        self.room = asyncio.Event()
        """Set while at most half of the spool is used."""
        self._note_room()

    def _note_room(self) -> None:
        self.status.spool_bytes = self.spool.waiting_bytes
        if self.spool.waiting_bytes > self._limits.bytes_max // 2:
            self.room.clear()
        else:
            self.room.set()

    def go_on(self) -> None:
        """Number the next message as the spool says."""
        self._numbers.epoch, self._numbers.last = self.spool.reached.epoch, self.spool.reached.last

    # -- from the local bus --------------------------------------------------------------------
    def export(self, channel: str, message: Message) -> None:
        """Put this into the spool with the next `commit`, unless that is full."""
        self._numbers.last += 1
        if self.spool.waiting_bytes + self._batch_bytes > self._limits.bytes_max:
            self.status.give_up(self._pattern_of(message.key))
            return
        claim, numbers = self._claim_of(message), self._numbers
        record = Record(numbers.epoch, numbers.last, claim, message.key, message.payload)
        self._batch.append(record)
        self._batch_bytes += len(record.key) + len(record.payload)

    def export_gap(self, channel: str, count: int | None) -> None:
        self._numbers.skip(count)

    def relay(self, crossing: Crossing) -> None:
        """Durable channels are not passed on."""

    def commit(self, cookie: int, bridges: set[int]) -> None:
        """Everything so far is in the spool: what came by the socket with this cookie, from a bus
        with these bridges."""
        epoch, last = self._numbers.epoch, self._numbers.last
        reached = Reached(epoch, last, cookie, sorted(bridges)[-BRIDGES_MAX:])
        try:
            self.spool.append(map(_encoder.encode, self._batch), reached)
        except OSError as error:
            for record in self._batch:
                self.status.give_up(self._pattern_of(record.key))
            self.report(f"{self.name} {error}", f"{self.name} is given up: {error}")
            self.spool.append([], reached)
        self._batch.clear()
        self._batch_bytes = 0
        self._news.set()
        self._note_room()

    # -- to the stream -------------------------------------------------------------------------
    async def run(self, nc: Client) -> None:
        """Send what is in the spool, until cancelled."""
        js = nc.jetstream(timeout=ACK_SECONDS)
        self._message_bytes_max = nc.max_payload
        await self._make_stream(js)
        while True:
            self._news.clear()
            records, end = self.spool.first(BATCH)
            if records:
                sequence = await self._send(js, [_decoder.decode(record) for record in records])
                self.spool.release(end, sequence)
                self._note_room()
                continue
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                await self._tell_end(nc, js)

    async def _tell_end(self, nc: Client, js: JetStreamContext) -> None:
        """Tell it if the stream has everything."""
        if not self.spool.last_sequence:
            self.spool.note_last_sequence((await self._info(js)).state.last_seq)
        reached = self.spool.reached
        if reached.epoch and not self.spool.waiting_bytes:
            end = End(reached.epoch, reached.last, self.spool.last_sequence)
            subject = f"{self._prefix}.e.{self._channel}.{self._origin}"
            await nc.publish(subject, b"", headers=encode_end(end, self._origin))

    async def _info(self, js: JetStreamContext) -> StreamInfo:
        return await js.stream_info(stream_name(self._prefix, self._channel))

    async def _make_stream(self, js: JetStreamContext) -> None:
        """Make it if there is none. One that is there stays as it is, because others use it; what
        is not as configured is reported."""
        try:
            config = (await self._info(js)).config
            kept = Durable(
                hours_max=(config.max_age or 0.0) / 3600,
                bytes_max=config.max_bytes or 0,
                replicas=config.num_replicas or 1,
            )
            if found := _differences(kept, self._limits):
                stream = stream_name(self._prefix, self._channel)
                text = f"stream {stream} has {found}: change it with `nats stream edit {stream}`"
                self.report(text, f"{self.name}: {text}")
        except nats.js.errors.NotFoundError:
            keep_seconds = self._limits.hours_max * 3600
            await js.add_stream(
                StreamConfig(
                    name=stream_name(self._prefix, self._channel),
                    subjects=[subjects_of(self._prefix, self._channel)],
                    max_age=keep_seconds,
                    max_bytes=self._limits.bytes_max,
                    num_replicas=self._limits.replicas,
                    duplicate_window=min(keep_seconds, _DUPLICATES_SECONDS_MAX),
                )
            )

    async def _send(self, js: JetStreamContext, records: list[Record]) -> int:
        """Returns once the stream has all of them, and the last sequence, or 0 for none; one run of
        numbers after the other, so each message tells that everything before its run was
        acknowledged, or will never be sent."""
        fitting, last_sequence = [], 0
        for record in records:
            if self._fits(record):
                fitting.append(record)
            else:
                self.status.give_up(self._pattern_of(record.key))
                self.report(f"{self.name} size", f"{self.name}: a message is too large for NATS")
        for run in _runs(fitting):
            acked = str(run[0].number - 1)
            acks = [await self._send_one(js, record, acked) for record in run]
            stored = await asyncio.wait_for(asyncio.gather(*acks), ACK_SECONDS)
            sequences = [ack.seq for ack in stored]
            if not all(sequences):  # a server has it, but the others have not agreed yet
                raise nats.errors.Error("a message has no place in the stream yet: sent again")
            last_sequence = max(last_sequence, *sequences)
            self.status.sent += len(run)
        return last_sequence

    def _fits(self, record: Record) -> bool:
        """Whether the server takes it."""
        size_bytes = len(record.payload) + len(record.claim) + _HEADERS_BYTES
        subject = self._subject_of(record)
        return len(subject) <= CONTROL_LINE_BYTES and size_bytes <= self._message_bytes_max

    def _subject_of(self, record: Record) -> str:
        return f"{self._prefix}.d.{self._channel}.{self._origin}.{encode_key(record.key, SLASH)}"

    async def _send_one(
        self, js: JetStreamContext, record: Record, acked: str
    ) -> asyncio.Future[PubAck]:
        envelope = Envelope(record.epoch, record.number, self._origin, record.claim)
        identity = f"{self._origin}/{record.epoch}/{self._channel}/{record.number}"
        headers = {HEADER: encode_envelope(envelope), MESSAGE_ID: identity, ACKED: acked}
        return await js.publish_async(
            self._subject_of(record), record.payload, wait_stall=ACK_SECONDS, headers=headers
        )


def _differences(kept: Durable, wanted: Durable) -> str:
    """What a stream has, and should have; empty if it is as configured."""
    values = {
        name: (getattr(kept, name), getattr(wanted, name)) for name in wanted.__struct_fields__
    }
    return ", ".join(
        f"{name} = {has:.12g}, not {should:.12g}"
        for name, (has, should) in values.items()
        if not math.isclose(has, should, rel_tol=1e-9)
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
