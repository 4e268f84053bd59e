"""The local side of a bridge: one connection that publishes what other buses sent, and one for each
channel that is exported, so that a channel's losses are its own.

The publishing connection has the name `bridge`, and that of a durable channel `bridge:CHANNEL`.
What a client with such a name has published is not exported, whichever user's it is, so two bridges
of one bus do not send each other's messages round.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from sbus.bridge.configuration import Channel
from sbus.bridge.envelope import (
    EPOCH,
    NUMBER_MAX,
    ORIGIN,
    Claim,
    Crossing,
    Envelope,
    decode_claim,
    encode_claim,
)
from sbus.bridge.ledger import Gap
from sbus.bridge.own_keys import FROM_KEY, LOST_KEY, NAME, may_cross
from sbus.bridge.status import ChannelStatus
from sbus.bridge.subjects import filter_of
from sbus.client.asynchronous import connect
from sbus.client.connection import Connection
from sbus.client.link import PACKET_BYTES_MAX
from sbus.client.message_queue import Lost, Reconnected
from sbus.errors import (
    BusError,
    ClientFault,
    ConfigurationError,
    MessagesUnconfirmed,
    PacketRefused,
)
from sbus.limits import Limits
from sbus.protocol.keys import SLASH, check_key
from sbus.protocol.packets import PUBLISH_WORD, Message
from sbus.protocol.pattern_matching import compile_patterns
from sbus.protocol.presence import Member, parse_change
from sbus.protocol.presence_keys import PRESENCE

WAITING_BYTES_MAX = 16 * 1024 * 1024
"""Of what waits to be published; then no more is read from NATS."""
_MESSAGE_BYTES = 128
_KEYS_MAX = 20_000
_encode = msgspec.json.Encoder().encode


class LocalPublisher:
    """Publishes in order what the exchange delivers."""

    def __init__(self, channels: dict[str, Channel], report: Callable[[str, str], None]) -> None:
        self.statuses = {name: status_of(name, channel) for name, channel in channels.items()}
        self.waiting_bytes = 0
        self._channels = channels
        self._accepts = {
            name: compile_patterns(channel.encoded_patterns, SLASH)
            for name, channel in channels.items()
        }
        self._accepted: dict[tuple[str, bytes], bool] = {}
        self._report = report
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        self._news = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()

    def deliver(self, channel: str, origin: str, item: Crossing | Gap) -> None:
        """Publish this after everything before it."""
        for key, payload in self.messages_of(channel, origin, item):
            self._add(key, payload)

    def messages_of(
        self, channel: str, origin: str, item: Crossing | Gap
    ) -> list[tuple[bytes, bytes]]:
        """The keys and payloads to publish for this."""
        if isinstance(item, Gap):
            told = {"origin": origin, "epoch": item.epoch, "first": item.first, "count": item.count}
            return [(LOST_KEY + channel.encode(), _encode(told))]
        is_short = len(item.key) + len(item.payload) < PACKET_BYTES_MAX - len(PUBLISH_WORD)
        if not (is_short and self._is_accepted(channel, item.key)):
            self.statuses[channel].refused += 1
            return []
        self.statuses[channel].imported += 1
        message = (item.key, item.payload)
        if self._channels[channel].claims:
            return [(FROM_KEY + channel.encode(), claim_note(item)), message]
        return [message]

    def _is_accepted(self, channel: str, key: bytes) -> bool:
        known = self._accepted.get((channel, key))
        if known is None:
            if len(self._accepted) >= _KEYS_MAX:
                self._accepted.clear()
            known = may_cross(key) and bool(self._accepts[channel](key)) and _is_possible(key)
            self._accepted[channel, key] = known
        return known

    def _add(self, key: bytes, payload: bytes) -> None:
        self._waiting.append((key, payload))
        self.waiting_bytes += len(key) + len(payload) + _MESSAGE_BYTES
        self._news.set()
        if self.waiting_bytes > WAITING_BYTES_MAX:
            self.room.clear()

    async def run(self, bus: Connection[Any]) -> None:
        """Publish until cancelled."""
        while True:
            await bus.publish_all(self._taken())
            self.room.set()
            self._news.clear()
            if not self._waiting:
                await self._news.wait()

    def _taken(self) -> Iterator[tuple[bytes, bytes]]:
        """What waits, each taken when it is sent."""
        while self._waiting:
            key, payload = self._waiting.popleft()
            self.waiting_bytes -= len(key) + len(payload) + _MESSAGE_BYTES
            yield key, payload

    async def watch(self, bus: Connection[Any]) -> None:
        """Report what the bus refuses."""
        while True:
            try:
                await bus.receive()
            except PacketRefused as refused:
                self._report(refused.code, f"the local bus refused a message: {refused}")
            except MessagesUnconfirmed as unconfirmed:
                self._report("unconfirmed", str(unconfirmed))


def status_of(name: str, channel: Channel) -> ChannelStatus:
    """Of a channel of which nothing has crossed yet."""
    filters = [filter_of(pattern, SLASH) for pattern in channel.encoded_patterns]
    return ChannelStatus(name, channel.patterns, [found.tokens for found in filters if found])


def _is_possible(key: bytes) -> bool:
    """Whether the local bus takes this key."""
    try:
        check_key(key, SLASH, Limits())
    except ClientFault:
        return False
    return b"\0" not in key


class Note(msgspec.Struct):
    """What the note before a message tells: its origin, and who published it, as that claims."""

    key: str
    origin: Annotated[str, Meta(pattern=f"^{ORIGIN.pattern}$")]
    epoch: Annotated[str, Meta(pattern=f"^{EPOCH.pattern}$")]
    number: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
    host: str
    uid: int | None
    program: str


_decode_note = msgspec.json.Decoder(Note).decode


def claim_note(item: Crossing) -> bytes:
    """The payload of the note before a message."""
    claim, key = decode_claim(item.envelope.claim), item.key.decode(errors="backslashreplace")
    epoch, number = item.envelope.epoch, item.envelope.number
    return _encode(Note(key, item.origin, epoch, number, *msgspec.structs.astuple(claim)))


class Sink(Protocol):
    """Where the messages of a bus go."""

    def export(self, channel: str, message: Message) -> None: ...

    def export_gap(self, channel: str, count: int | None) -> None: ...

    def relay(self, crossing: Crossing) -> None: ...


@asynccontextmanager
async def publishing(address: str, name: str = NAME) -> AsyncIterator[Connection[Any]]:
    """A connection with a name of the bridge. Raises ConfigurationError if there is one."""
    async with connect(address, losses="report", reconnect=True) as bus:
        try:
            await bus.join(name)
        except PacketRefused as refused:
            if refused.code != "name-taken":
                raise
            raise ConfigurationError(
                f"another bridge of this user serves the bus at {address}"
            ) from refused
        bus._link.inbox.refusals.share()  # the task that receives reports those of the others
        yield bus


class ChannelReader:
    """Reads one channel of a bus. What a bridge has published there goes on only with its note."""

    def __init__(self, status: ChannelStatus, channel: Channel, sink: Sink) -> None:
        self.wanted = asyncio.Event()
        """Set once somebody imports the channel."""
        self.status = status
        self._name = status.name
        self._channel = channel
        self._sink = sink
        self._note_key = FROM_KEY + status.name.encode()
        self._own_pid = 0
        self._trusted = {0}
        """Users whose notes are believed: root, and the bridge's own."""
        self._bridges: set[int] = set()
        self._notes: dict[int, bytes] = {}
        """By the bridge that has published it; of the message that follows."""

    async def run(self, address: str, wait_room: Callable[[str], Awaitable[object]]) -> None:
        """Read until cancelled, from the time when it is wanted. `wait_room` returns when the links
        of a channel have room."""
        await self.wanted.wait()
        async with connect(address, losses="report", reconnect=True, sender=True) as bus:
            await self._subscribe(bus)
            self.status.is_reading = True
            while True:
                for item in await bus.receive_many(256):
                    if isinstance(item, Lost):
                        await self._note_gap(bus, item)
                    else:
                        self._take(item)
                if self._channel.when_full == "block":
                    await wait_room(self._name)

    async def _subscribe(self, bus: Connection[Any]) -> None:
        await bus.control(f"blocking/hard/{self._channel.when_full}")
        await bus.subscribe(f"!/presence/*/{NAME}*")
        for pattern in (*self._channel.encoded_patterns, self._note_key):
            await bus.subscribe(pattern)
        own = await bus.whoami()
        self._own_pid, self._trusted = own.pid, {0, own.uid}
        await self._find_bridges(bus)

    def _take(self, message: Message) -> None:
        if message.key.startswith(PRESENCE):
            change = parse_change(message)
            if change.reason is None:
                self._note_member(change.member)
            else:
                self._bridges.discard(change.member.client)
                self._notes.pop(change.member.client, None)
            return
        assert message.sender is not None
        client = message.sender.client
        if client in self._bridges:
            if message.sender.pid != self._own_pid and message.sender.uid in self._trusted:
                self._take_relayed(client, message)
        elif may_cross(message.key):
            self.status.exported += 1
            self._sink.export(self._name, message)

    def _take_relayed(self, client: int, message: Message) -> None:
        if message.key == self._note_key:
            self._notes[client] = message.payload
            return
        note = self._notes.pop(client, None)
        if note is None or not may_cross(message.key):
            return
        with suppress(msgspec.DecodeError, RecursionError):  # nothing checks what a client writes
            told = _decode_note(note)
            claim = encode_claim(Claim(told.host, told.uid, told.program))
            envelope = Envelope(told.epoch, told.number, str(client), claim)
            self._sink.relay(
                Crossing(self._name, told.origin, envelope, message.key, message.payload)
            )

    async def _note_gap(self, bus: Connection[Any], gap: Lost) -> None:
        self.status.lost_locally += gap.count or 0
        self._sink.export_gap(self._name, gap.count)
        if isinstance(gap, Reconnected):  # the new bus counts its clients anew
            self._bridges.clear()
            self._notes.clear()
        await self._find_bridges(bus)

    async def _find_bridges(self, bus: Connection[Any]) -> None:
        with suppress(BusError):
            for member in await bus.members(f"*/{NAME}*"):
                self._note_member(member)

    def _note_member(self, member: Member) -> None:
        if member.name.partition(b":")[0] == NAME.encode():
            self._bridges.add(member.client)
