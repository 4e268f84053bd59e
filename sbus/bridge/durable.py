"""Durable channels: a stream of JetStream between the buses, which keeps what was sent for a time.

The exporter keeps each message in its spool until the stream has it, and sends it again until then;
with the same id, by which the stream knows it. What is sent again may come behind what was sent
after it. So each message tells up to which number all were acknowledged before it was sent, or will
never be: what is missing up to there is lost, and anything else will still come.

The importer reads the stream in its order from where its `Progress` says, and delivers by ledger.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
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
from sbus.bridge.ends import End, Ends
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
_SILENCE_SECONDS: Final = 5.0


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
        self._stream = stream_name(prefix, channel)
        self._own = plan.origin
        self.progress = Progress(Path(plan.state) / f"{channel}.progress")
        self.ledgers: dict[str, Ledger[Stored]] = self.progress.ledgers()
        self._expected = 0
        """The number in the stream that comes next."""
        self._look_back_at = 0.0
        """The earliest time for that."""
        self._left_out = (0, 0)
        """Before which number something was left out last, and how often."""
        self._removed_before = 0
        """What is missing before this number is no longer in the stream."""
        self._asked_at = 0.0
        """When the stream brought something last, or was asked whether there is more."""
        self._owed = 0
        """The number of the last message that there was then."""
        self._ends = Ends(prefix, channel, report)

    async def run(self, nc: Client) -> None:
        """Deliver what comes, until cancelled."""
        js = nc.jetstream(timeout=ACK_SECONDS)
        self.ledgers = self.progress.ledgers()  # what waited comes again
        await self._find_beginning(js)
        self._expected = self.progress.next_in_stream
        consumer = await js.pull_subscribe(
            f"{self._prefix}.d.{self._channel}.>",
            stream=self._stream,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._expected,
                ack_policy=AckPolicy.ALL,
                max_ack_pending=4 * self.batch_messages_max,
                inactive_threshold=60.0,
            ),
        )
        self._asked_at, self._owed = asyncio.get_running_loop().time(), 0
        async with self._ends.heard(nc):
            while True:
                self.status.is_importing = True
                await self._read(js, consumer)

    async def _read(
        self, js: JetStreamContext, consumer: JetStreamContext.PullSubscription
    ) -> None:
        """Deliver what comes next."""
        found: list[Msg] = []
        with suppress(TimeoutError):
            found = await consumer.fetch(self.batch_messages_max, timeout=_FETCH_SECONDS)
        now = asyncio.get_running_loop().time()
        if found:
            self._asked_at = now
        elif now - self._asked_at >= _SILENCE_SECONDS:
            self._asked_at = now
            await self._find_more(js)
        batch = await self._unbroken(js, found)
        if batch or self._ends.are_due(self._expected):
            await self.deliver(batch)
        if batch:
            await batch[-1].ack()
        if len(batch) < len(found):
            raise nats.errors.Error("the servers have left out messages: read again")

    async def _find_more(self, js: JetStreamContext) -> None:
        """Nothing has come for some seconds. What is expected may have been removed, and servers
        that lose each other may forget who reads."""
        state = (await js.stream_info(self._stream)).state
        if state.first_seq > self._expected:
            self._note_removed(state.first_seq)
            self._expected = state.first_seq
        if self._owed >= self._expected:
            raise nats.errors.Error("the servers bring nothing: read again")
        self._owed = state.last_seq

    async def _unbroken(self, js: JetStreamContext, found: list[Msg]) -> list[Msg]:
        """Those before the first that is left out of the stream."""
        for at, msg in enumerate(found):
            number = msg.metadata.sequence.stream
            if number > self._expected and not await self._is_removed(js, number):
                return found[:at]
            self._expected = max(self._expected, number + 1)
        return found

    async def _is_removed(self, js: JetStreamContext, number: int) -> bool:
        """Whether what is missing before this is no longer in the stream. Otherwise the servers
        have left it out, as they do when they have just started, or lose each other; what is still
        left out after some attempts was removed by somebody from the middle of the stream."""
        if number > self._removed_before:
            first = (await js.stream_info(self._stream)).state.first_seq
            place, attempts = self._left_out
            attempts = attempts + 1 if place == number else 1
            self._left_out = (number, attempts)
            if number > first and attempts <= _ATTEMPTS_MAX:
                return False
        self._note_removed(number)
        return True

    def _note_removed(self, before: int) -> None:
        self._removed_before = max(self._removed_before, before)
        if before > self.progress.begins_at:
            self.progress.note_removed()

    async def _find_beginning(self, js: JetStreamContext) -> None:
        """Wait until there is a stream. What is sent from now on counts; what was sent shortly
        before tells how far its origins are. Of a stream that is made later, everything counts."""
        while True:
            try:
                state = (await js.stream_info(self._stream)).state
                break
            except nats.js.errors.NotFoundError:
                if self.progress.next_in_stream == 0:
                    self.progress.begin(1, 1)
                await asyncio.sleep(_STREAM_RETRY_SECONDS)
        reached = self.progress.next_in_stream
        first, end = max(1, state.first_seq), state.last_seq + 1
        if reached == 0 and self.reads_all:
            self.progress.begin(first, first)
        elif reached == 0:
            self.progress.begin(max(first, end - _LOOK_BACK_MESSAGES), end)
        elif reached > end:
            text = f"stream {self._stream} was made anew: read from its beginning"
            self.report(f"{self._stream} anew", text)
            self.progress.begin(1, 1)
            self._removed_before = 0

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
        stored = Stored(crossing, msg.metadata.sequence.stream)
        counts = stored.sequence >= self.progress.begins_at
        begins = Ledger[Stored](envelope.epoch, acked) if counts else Ledger[Stored]()
        ledger, given = self._ledger(origin, begins, has_missed=self.progress.has_removed)
        if ledger is None:
            return "", []
        if envelope.epoch == ledger.epoch and ledger.next <= acked:
            self._look_back(stored.sequence)
        now = asyncio.get_running_loop().time()
        given += ledger.feed(("stream",), envelope.epoch, envelope.number, stored, now, acked)
        if not counts:
            return origin, []
        return origin, [it if isinstance(it, Gap) else it.crossing for it in given]

    def _ledger(
        self, origin: str, begins: Ledger[Stored], *, has_missed: bool
    ) -> tuple[Ledger[Stored] | None, list[Stored | Gap]]:
        """Of this origin. For a new one, it is `begins`, and if messages of it may have been
        missed, this is a gap; or None, as anybody can invent one."""
        ledger = self.ledgers.get(origin)
        if ledger is not None:
            return ledger, []
        if len(self.ledgers) >= ORIGINS_MAX:
            self.report(f"{self.name} full", f"{self.name}: too many origins: {origin}")
            return None, []
        self.ledgers[origin] = begins
        if not has_missed:
            return begins, []
        begins.counts.unknown_gaps += 1
        return begins, [Gap(begins.epoch, 1, None)]

    def due(self) -> Iterator[tuple[str, list[Crossing | Gap]]]:
        """The origins whose ends are reached, each with what is missing before that."""
        for origin, end in self._ends.due(self._expected):
            yield origin, self._end(origin, end)

    def _end(self, origin: str, end: End) -> list[Crossing | Gap]:
        if origin == self._own:
            return []
        epoch, number = end.envelope.epoch, end.envelope.number
        counts = end.stored >= self.progress.begins_at
        begins = Ledger[Stored](epoch, number)
        ledger, given = self._ledger(origin, begins, has_missed=counts and number > 0)
        if ledger is None:
            return []
        if epoch == ledger.epoch and ledger.next <= number:
            self._look_back(end.stored)
        now = asyncio.get_running_loop().time()
        given += ledger.heartbeat(("stream",), epoch, number, now)
        return [it if isinstance(it, Gap) else it.crossing for it in given]

    def _look_back(self, number: int) -> None:
        """Messages are missing. While servers are killed, a reader may miss what others receive; so
        begin again before that, unless this was done a short time ago."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_back_at:
            self._look_back_at = now + _LOOK_BACK_SECONDS
            before = max(1, number - _LOOK_BACK_MESSAGES)
            self.progress.next_in_stream = min(self.progress.next_in_stream, before)
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
