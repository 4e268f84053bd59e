"""Durable channels: a stream of JetStream between the buses, which keeps what was sent for a time.

The exporter keeps each message in its spool until the stream has it (`durable_messages`), and
repeats its end while it has nothing to send (`ends`). The importer reads the stream in its order
from where its `Progress` says, and delivers by ledger.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamInfo

from sbus.bridge.configuration import Configuration
from sbus.bridge.durable_messages import StreamMessage, parse_message, stream_name, subjects_of
from sbus.bridge.ends import End, Ends
from sbus.bridge.envelope import Crossing, EnvelopeError
from sbus.bridge.ledger import Gap, Ledger
from sbus.bridge.progress import ORIGINS_MAX, Progress
from sbus.bridge.status import DurableStatus

BATCH: Final = 256
ACK_SECONDS: Final = 5.0
_FETCH_SECONDS: Final = 1.0
_STREAM_RETRY_SECONDS: Final = 1.0
_LOOK_BACK_MESSAGES: Final = 4_096
_LOOK_BACK_SECONDS: Final = 30.0
_SILENCE_SECONDS: Final = 5.0


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
        self._subjects = subjects_of(prefix, channel)
        self._own = plan.origin
        self.progress = Progress(Path(plan.state) / f"{channel}.progress")
        self.ledgers: dict[str, Ledger[StreamMessage]] = self.progress.ledgers()
        self._expected = 0
        """The number in the stream that comes next."""
        self._look_back_at = 0.0
        """The earliest time for that."""
        self._asked_at = 0.0
        """When the stream brought something last, or was asked whether it has more."""
        self._known_last = 0
        """The last number in the stream when it was asked."""
        self._ends = Ends(prefix, channel, report)

    async def run(self, nc: Client) -> None:
        """Deliver what comes, until cancelled."""
        js = nc.jetstream(timeout=ACK_SECONDS)
        self.ledgers = self.progress.ledgers()  # what waited comes again
        await self._find_beginning(js)
        consumer = await js.pull_subscribe(
            self._subjects,
            stream=self._stream,
            config=ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._expected,
                ack_policy=AckPolicy.ALL,
                max_ack_pending=4 * self.batch_messages_max,
                inactive_threshold=60.0,
            ),
        )
        self._asked_at, self._known_last = asyncio.get_running_loop().time(), 0
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
        """Nothing has come for some seconds. The stream may be another one, what is expected may
        have been removed, and servers that lose each other may forget who reads."""
        told = self._ends.waiting()
        info = await js.stream_info(self._stream)
        first, last = info.state.first_seq, info.state.last_seq
        if _created(info) != self.progress.created or last + 1 < self._expected:
            raise nats.errors.Error("the stream is not what it was: read again")
        self._ends.bound(told, last)
        if first > self._expected:
            self._pass_removed(first)
        known_last, self._known_last = min(self._known_last, last), last
        if known_last >= self._expected:
            if await self._next_sequence(js) is not None:
                raise nats.errors.Error("the servers bring nothing: read again")
            self._pass_removed(known_last + 1)

    async def _unbroken(self, js: JetStreamContext, found: list[Msg]) -> list[Msg]:
        """Those before the first that is left out although the stream has it. Servers do so when
        they have just started, or lose each other."""
        for at, msg in enumerate(found):
            number = msg.metadata.sequence.stream
            if number > self._expected:
                if await self._next_sequence(js) != number:
                    return found[:at]
                self._pass_removed(number)
            self._expected = max(self._expected, number + 1)
        return found

    async def _next_sequence(self, js: JetStreamContext) -> int | None:
        """That of the first message that is expected and was not removed."""
        try:
            found = await js.get_msg(self._stream, self._expected, self._subjects, next=True)
        except nats.js.errors.NotFoundError:
            return None
        return found.seq

    def _pass_removed(self, before: int) -> None:
        """What is expected before this number was removed."""
        self.progress.note_removed(before)
        self._expected = before

    async def _find_beginning(self, js: JetStreamContext) -> None:
        """Wait until there is a stream. What is sent from now on counts; what was sent shortly
        before tells how far its origins are. Of a stream that is made later, everything counts."""
        reached = self.progress.next_in_stream
        while True:
            try:
                info = await js.stream_info(self._stream)
                break
            except nats.js.errors.NotFoundError:
                if not reached:
                    self.progress.begin("", 1, 1)
                    reached = 1
                await asyncio.sleep(_STREAM_RETRY_SECONDS)
        created, known = _created(info), self.progress.created or _created(info)
        first, end = max(1, info.state.first_seq), info.state.last_seq + 1
        if reached == 0 and self.reads_all:
            self.progress.begin(created, first, first)
        elif reached == 0:
            self.progress.begin(created, max(first, end - _LOOK_BACK_MESSAGES), end)
        elif reached > end or created != known:
            text = f"stream {self._stream} was made anew: read from its beginning"
            self.report(f"{self._stream} {created}", text)
            self.progress.begin(created, 1, 1)
        else:
            self.progress.note_created(created)
        self._expected = self.progress.next_in_stream
        if first > self._expected:
            self._pass_removed(first)

    async def deliver(self, batch: list[Msg]) -> None:
        """Bring what these make deliverable to where it goes, and note the progress."""
        raise NotImplementedError

    def feed(self, msg: Msg) -> tuple[str, list[Crossing | Gap]]:
        """The origin of a message, and what it makes deliverable."""
        try:
            message = parse_message(msg, self._prefix, self._channel)
        except EnvelopeError as error:
            self.report(msg.subject[:80], f"a message of {msg.subject[:80]} is refused: {error}")
            return "", []
        origin, envelope, acked = message.crossing.origin, message.crossing.envelope, message.acked
        if origin == self._own:
            return "", []
        self.status.received += 1
        is_counted = message.sequence >= self.progress.counts_from
        beginning = Ledger[StreamMessage](envelope.epoch, acked)
        ledger, given = self._ledger(origin, beginning, has_missed=self.progress.has_missed)
        if ledger is None:
            return "", []
        if is_counted and envelope.epoch == ledger.epoch and ledger.next <= acked:
            self._look_back(message.sequence)
        now = asyncio.get_running_loop().time()
        given += ledger.feed(("stream",), envelope.epoch, envelope.number, message, now, acked)
        return origin, self._counted(given) if is_counted else []

    def due(self) -> Iterator[tuple[str, list[Crossing | Gap]]]:
        """The origins whose ends are reached, each with what is missing before that."""
        for origin, end in self._ends.due(self._expected):
            if origin != self._own:
                yield origin, self._reach_end(origin, end)

    def _reach_end(self, origin: str, end: End) -> list[Crossing | Gap]:
        is_counted = end.sequence >= self.progress.counts_from
        beginning = Ledger[StreamMessage](end.epoch, end.number)
        has_missed = is_counted and end.number > 0
        ledger, given = self._ledger(origin, beginning, has_missed=has_missed)
        if ledger is None:
            return []
        if is_counted and end.epoch == ledger.epoch and ledger.next <= end.number:
            self._look_back(self._expected)
        now = asyncio.get_running_loop().time()
        given += ledger.heartbeat(("stream",), end.epoch, end.number, now)
        return self._counted(given) if is_counted else []

    def _counted(self, given: list[StreamMessage | Gap]) -> list[Crossing | Gap]:
        """Without what was sent before the first start."""
        first = self.progress.counts_from
        return [
            it if isinstance(it, Gap) else it.crossing
            for it in given
            if isinstance(it, Gap) or it.sequence >= first
        ]

    def _ledger(
        self, origin: str, beginning: Ledger[StreamMessage], *, has_missed: bool
    ) -> tuple[Ledger[StreamMessage] | None, list[StreamMessage | Gap]]:
        """Of this origin. For a new one, it is `beginning`, and if messages of it may have been
        missed, this is a gap; or None, as anybody can invent one."""
        ledger = self.ledgers.get(origin)
        if ledger is not None:
            return ledger, []
        if len(self.ledgers) >= ORIGINS_MAX:
            self.report(f"{self.name} full", f"{self.name}: too many origins: {origin}")
            return None, []
        self.ledgers[origin] = beginning
        if not has_missed:
            return beginning, []
        beginning.counts.unknown_gaps += 1
        return beginning, [Gap(beginning.epoch, 1, None)]

    def _look_back(self, sequence: int) -> None:
        """Messages are missing. While servers are killed, a reader may miss what others receive; so
        begin again before that, unless this was done a short time ago."""
        now = asyncio.get_running_loop().time()
        if now >= self._look_back_at:
            self._look_back_at = now + _LOOK_BACK_SECONDS
            before = max(1, sequence - _LOOK_BACK_MESSAGES)
            self.progress.next_in_stream = min(self.progress.next_in_stream, before)
            raise nats.errors.Error("messages are missing: read again")

    def first_held(self, after: int) -> int:
        """Where to begin again, so that messages that wait for others come again."""
        held = (it.sequence for ledger in self.ledgers.values() for it in ledger.waiting())
        return min([after, *held])


def _created(info: StreamInfo) -> str:
    """When the stream was made, which tells it from another one of this name."""
    return str(info.created or "")
