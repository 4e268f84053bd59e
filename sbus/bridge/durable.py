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
from typing import Final

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from sbus.bridge.configuration import Configuration
from sbus.bridge.envelope import (
    HEADER,
    ORIGIN,
    Crossing,
    EnvelopeError,
    decode_envelope,
)
from sbus.bridge.ledger import Gap, Ledger
from sbus.bridge.progress import ORIGINS_MAX, Progress
from sbus.bridge.status import DurableStatus
from sbus.bridge.subjects import decode_key
from sbus.protocol.keys import SLASH

ACKED: Final = "Sbus-Acked"
MESSAGE_ID: Final = "Nats-Msg-Id"
BATCH: Final = 256
ACK_SECONDS: Final = 5.0
_FETCH_SECONDS: Final = 1.0
_STREAM_RETRY_SECONDS: Final = 1.0
_ATTEMPTS_MAX: Final = 4
_LOOK_BACK_MESSAGES: Final = 4_096
_LOOK_BACK_SECONDS: Final = 30.0


class Stored(msgspec.Struct, frozen=True):
    """A message of the stream, and its number there."""

    crossing: Crossing
    sequence: int


def stream_name(prefix: str, channel: str) -> str:
    return f"{prefix.replace('.', '_')}_{channel}"


class StreamReader:
    """Reads the stream of one channel; what is derived from it says where the messages go."""

    batch_messages_max = BATCH
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
        self._expected = 0
        """The number in the stream that comes next."""
        self._look_back_at = 0.0
        """The earliest time for that."""
        self._left_out = (0, 0)
        """Where something was left out last, and how often."""

    async def run(self, nc: Client) -> None:
        """Deliver what comes, until cancelled."""
        js = nc.jetstream(timeout=ACK_SECONDS)
        self.ledgers = self.progress.ledgers()  # what waited comes again
        name = stream_name(self._prefix, self._channel)
        await self._find_beginning(js, name)
        self._expected = self.progress.next_in_stream
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
                found = await consumer.fetch(self.batch_messages_max, timeout=_FETCH_SECONDS)
            except TimeoutError:
                continue
            if batch := self._unbroken(found):
                await self.deliver(batch)
                await batch[-1].ack()
            if len(batch) < len(found):
                raise nats.errors.Error("the servers have left out messages: read again")

    def _unbroken(self, found: list[Msg]) -> list[Msg]:
        """Those before the first that is left out of the stream. Servers do so when they have just
        started, or lose each other; what is still left out after some attempts was removed."""
        for at, msg in enumerate(found):
            number = msg.metadata.sequence.stream
            if number > self._expected:
                place, attempts = self._left_out
                attempts = attempts + 1 if place == self._expected else 1
                self._left_out = (self._expected, attempts)
                if attempts <= _ATTEMPTS_MAX:
                    return found[:at]
            self._expected = max(self._expected, number + 1)
        return found

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
            if len(self.ledgers) >= ORIGINS_MAX:  # anybody can invent one
                self.report(f"{self.name} full", f"{self.name}: too many origins: {origin}")
                return "", []
            ledger = Ledger(envelope.epoch, acked) if self.reads_all else Ledger()
            self.ledgers[origin] = ledger
        stored = Stored(crossing, msg.metadata.sequence.stream)
        now = asyncio.get_running_loop().time()
        if envelope.epoch == ledger.epoch and ledger.next <= acked:
            self._look_back(stored.sequence, now)
        given = ledger.feed(("stream",), envelope.epoch, envelope.number, stored, now, acked)
        return origin, [item if isinstance(item, Gap) else item.crossing for item in given]

    def _look_back(self, number: int, now: float) -> None:
        """Messages are missing. While servers are killed, a reader may miss what others receive; so
        begin again before that, unless this was done a short time ago."""
        if now >= self._look_back_at:
            self._look_back_at = now + _LOOK_BACK_SECONDS
            self.progress.next_in_stream = max(1, number - _LOOK_BACK_MESSAGES)
            raise nats.errors.Error("messages are missing: read again")

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
