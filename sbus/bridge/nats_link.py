"""A link over NATS: what it sends waits in a queue of its own, and what comes goes to the exchange.

Subjects below the prefix: `m.CHANNEL.ORIGIN.KEY` for messages, the same without a key for
heartbeats and for *frames*, in which many messages travel at once while they wait, and
`j.CHANNEL` for importers, who say hello there. Heartbeats ask for a reply that nobody
gives: NATS itself replies when nobody has subscribed, and then the channel is not sent. A hello
ends that.

A connection that is lost is made anew, after a pause that grows and is never twice the same. What
was under way is found to be missing by its receivers, as numbers tell.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sbus.bridge.configuration import Link
from sbus.bridge.durable import StreamReader
from sbus.bridge.durable_export import CONTROL_LINE_BYTES, DurableExport
from sbus.bridge.envelope import (
    HEADER,
    ORIGIN,
    Crossing,
    Envelope,
    EnvelopeError,
    Heartbeat,
    decode_envelope,
    encode_envelope,
)
from sbus.bridge.exchange import Exchange
from sbus.bridge.frames import FRAME_BYTES_MAX, decode_frame, encode_frame, first_frame
from sbus.bridge.nats_client import LinkClient, close, credentials
from sbus.bridge.status import LinkStatus, Peer
from sbus.bridge.subjects import decode_key, encode_key
from sbus.errors import BusError
from sbus.protocol.keys import SLASH
from sbus.version import __version__

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
_CONNECT_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.2
_HELLO_SECONDS: Final = 10.0
_PEER_SECONDS: Final = 3 * _HELLO_SECONDS
_PEERS_MAX: Final = 1_024
"""That are shown; anybody can invent one."""
_MESSAGE_BYTES: Final = 256
"""Of a message that waits, besides key and payload."""
_YIELD_MESSAGES: Final = 256
_SUBJECTS_MAX: Final = 20_000
"""Whose keys are remembered."""
_INCOMING_BYTES_MAX: Final = 64 * 1024 * 1024
_INCOMING_MESSAGES_MAX: Final = 131_072
_ERRORS = (OSError, nats.errors.Error, TimeoutError)


class NatsLink:
    """One link; `name` is that of the configuration."""

    def __init__(
        self,
        name: str,
        plan: Link,
        exchange: Exchange,
        wanted: Callable[[str], None],
        report: Callable[[str, str], None],
    ) -> None:
        """`wanted` is told of a channel when somebody imports it."""
        self.name = name
        self.plan = plan
        channels = exchange.plan.channels
        self.exports = frozenset(it for it in plan.exports if not channels[it].durable)
        self.imports = frozenset(it for it in plan.imports if not channels[it].durable)
        self.durable: list[DurableExport | StreamReader] = []
        self.status = LinkStatus(name, plan.exports, plan.imports, plan.prefix)
        self.import_room = asyncio.Event()
        """Set while more may be delivered."""
        self._peers: dict[str, Peer] = {}
        self._exchange = exchange
        self._wanted = wanted
        self._report = report
        self._queue: deque[Crossing | Heartbeat] = deque()
        self._unyielded = 0
        """Messages sent since other tasks had a turn."""
        self._news = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self._tokens: dict[bytes, str] = {}
        self._keys: dict[str, tuple[str, bytes | None] | None] = {}
        self._inbox = ""

    # -- sending -------------------------------------------------------------------------------
    def send(self, crossing: Crossing) -> None:
        """Send this if somebody imports it and there is room; otherwise it is given up."""
        if crossing.channel not in self.status.wanted:
            return
        if self.status.waiting_bytes > self.plan.buffer_bytes_max:
            self._give_up(crossing)
            return
        self._enqueue(crossing)

    def _give_up(self, crossing: Crossing) -> None:
        channel = self._exchange.plan.channels[crossing.channel]
        self.status.give_up(channel.pattern_of(crossing.key))

    def beat(self, channel: str, origin: str, envelope: Envelope) -> None:
        """Send a heartbeat; while there is no connection, none."""
        if self.status.is_reading:
            self._enqueue(Heartbeat(channel, origin, envelope))

    def _enqueue(self, item: Crossing | Heartbeat) -> None:
        self._queue.append(item)
        self.status.waiting_bytes += _size_bytes(item)
        self._news.set()
        if self.status.waiting_bytes > self.plan.buffer_bytes_max // 2:
            self.room.clear()

    async def _send_queue(self, nc: Client) -> None:
        while True:
            while self._queue:
                frame = first_frame(self._queue, min(FRAME_BYTES_MAX, nc.max_payload // 2))
                await self._send(nc, self._queue[0], frame)
                for _ in range(len(frame) or 1):
                    self.status.waiting_bytes -= _size_bytes(self._queue.popleft())
                self._unyielded += len(frame)
                if self._unyielded > _YIELD_MESSAGES:
                    self._unyielded = 0
                    await asyncio.sleep(0)
            self.room.set()
            self._news.clear()
            await self._news.wait()

    async def _send(self, nc: Client, first: Crossing | Heartbeat, frame: list[Crossing]) -> None:
        headers = {HEADER: encode_envelope(first.envelope)}
        top = f"{self.plan.prefix}.m.{first.channel}.{first.origin}"
        if isinstance(first, Heartbeat):
            await nc.publish(top, b"", f"{self._inbox}.{first.channel}", headers)
            return
        subject, payload = f"{top}.{self._tokens_of(first.key)}", first.payload
        if len(frame) > 1 or len(subject) > CONTROL_LINE_BYTES:
            subject, payload = top, encode_frame(frame)
        if len(payload) + len(headers[HEADER]) + 64 > nc.max_payload:
            self._give_up(first)
            return
        await nc.publish(subject, payload, "", headers)
        self.status.sent += len(frame)

    def _tokens_of(self, key: bytes) -> str:
        tokens = self._tokens.get(key)
        if tokens is None:
            if len(self._tokens) >= _SUBJECTS_MAX:
                self._tokens.clear()
            tokens = self._tokens[key] = encode_key(key, SLASH)
        return tokens

    # -- receiving -----------------------------------------------------------------------------
    async def _receive(self, channel: str, msg: Msg) -> None:
        if msg.subject in self._keys:
            found = self._keys[msg.subject]
        else:
            found = self._parse_subject(channel, msg.subject)
        header = (msg.headers or {}).get(HEADER, "")
        try:
            if not found:
                raise EnvelopeError(f"its subject is that of no key: {msg.subject[:80]!r}")
            envelope = decode_envelope(header)
        except EnvelopeError as error:
            self.status.bad += 1
            self._report(
                f"{self.name} {msg.subject[:80]}",
                f"a message of {msg.subject[:80]} is refused: {error}",
            )
            return
        origin, key = found
        now = asyncio.get_running_loop().time()
        if key is not None:
            crossings: Iterable[Crossing] = (Crossing(channel, origin, envelope, key, msg.data),)
        elif msg.data:
            crossings = decode_frame(Heartbeat(channel, origin, envelope), msg.data)
        else:
            crossings = ()
            if self._exchange.beaten(self, channel, origin, envelope, now):
                await self._say_hello(channel)
        for crossing in crossings:
            self.status.received += 1
            self._exchange.arrived(self, crossing, now)
        if not self.import_room.is_set():
            await self.import_room.wait()

    def _parse_subject(self, channel: str, subject: str) -> tuple[str, bytes | None] | None:
        """The origin, and the key, which is None for a heartbeat; None if it is no such subject."""
        below = subject.removeprefix(f"{self.plan.prefix}.m.{channel}.")
        origin, has_key, tokens = below.partition(".")
        key = decode_key(tokens, SLASH) if has_key else None
        is_good = ORIGIN.fullmatch(origin) and (key is not None or not has_key)
        if len(self._keys) >= _SUBJECTS_MAX:
            self._keys.clear()
        self._keys[subject] = (origin, key) if is_good else None
        return self._keys[subject]

    async def _hear_hello(self, channel: str, msg: Msg) -> None:
        try:
            peer = msgspec.json.decode(msg.data, type=Peer)
        except msgspec.DecodeError:
            self.status.bad += 1
            return
        peer.heard = asyncio.get_running_loop().time()
        if peer.origin == self._exchange.plan.origin:
            return
        if len(self._peers) < _PEERS_MAX or peer.origin in self._peers:
            is_new = peer.origin not in self._peers
            self._peers[peer.origin] = peer
            if is_new:
                self._show_peers()
        if channel not in self.status.wanted:
            self.status.wanted.add(channel)
            self._wanted(channel)
            self._exchange.beat(self, channel)

    def _show_peers(self) -> None:
        self.status.peers = [f"{peer.host} ({peer.origin})" for peer in self._peers.values()]

    async def _hear_nobody(self, msg: Msg) -> None:
        if (msg.headers or {}).get("Status") == "503":
            self.status.wanted.discard(msg.subject.rpartition(".")[2])

    async def _say_hello(self, channel: str) -> None:
        plan = self._exchange.plan
        hello = msgspec.json.encode(
            {"origin": plan.origin, "host": plan.host, "version": __version__}
        )
        await self._nc.publish(f"{self.plan.prefix}.j.{channel}", hello)

    # -- the connection ------------------------------------------------------------------------
    async def run(self) -> None:
        """Be connected until cancelled."""
        pause = PAUSE_SECONDS_MIN
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._serve()
            except _ERRORS as error:
                self.status.state = f"down: {_reason([error])}"
                self._report(
                    f"{self.name} {self.status.state} {self.status.sessions}",
                    f"link {self.name} is {self.status.state}",
                )
            if asyncio.get_running_loop().time() - began > PAUSE_SECONDS_MAX:
                pause = PAUSE_SECONDS_MIN
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _serve(self) -> None:
        closed = asyncio.Event()
        errors: list[Exception] = []
        self._nc = nc = LinkClient()

        async def note_error(error: Exception) -> None:
            errors.append(error)
            del errors[:-8]
            if nc.is_connected:
                self._report(f"{self.name} {error}", f"link {self.name}: NATS says: {error}")

        async def note_closed() -> None:
            closed.set()

        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await nc.connect(
                    random.choice(self.plan.servers),
                    name=f"sbus bridge of {self._exchange.plan.host}",
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    ping_interval=2,
                    no_echo=True,
                    error_cb=note_error,
                    closed_cb=note_closed,
                    **credentials(self.plan),
                )
        except (*_ERRORS, Exception) as error:
            await close(nc)
            raise nats.errors.Error(_reason(errors or [error])) from error
        try:
            await self._subscribe(nc)
            self.status.sessions += 1
            self.status.state, self.status.is_reading = "up", True
            self._report(f"{self.name} up {self.status.sessions}", f"link {self.name} is up")
            async with asyncio.TaskGroup() as tasks:
                helpers = [
                    tasks.create_task(self._send_queue(nc)),
                    tasks.create_task(self._greet()),
                    *(tasks.create_task(self._keep_on(it, nc)) for it in self.durable),
                ]
                try:
                    while not nc.is_closed:  # the client does not tell of every end
                        with suppress(TimeoutError):
                            async with asyncio.timeout(_LOOK_SECONDS):
                                await closed.wait()
                finally:
                    for helper in helpers:
                        helper.cancel()
                    await close(nc)  # for a helper whose cancellation it has swallowed
        except* _ERRORS as group:
            raise nats.errors.Error(_reason([*errors, *group.exceptions])) from group
        finally:
            self.status.state, self.status.is_reading = "down", False
            await close(nc)
        raise nats.errors.Error(_reason(errors) if errors else "the server has closed it")

    async def _keep_on(self, channel: DurableExport | StreamReader, nc: Client) -> None:
        """Whatever goes wrong with a durable channel, try again. (A call of the NATS client that is
        cancelled when its connection has been closed may raise that instead.)"""
        while not nc.is_closed:
            try:
                await channel.run(nc)
            except (*_ERRORS, BusError) as error:
                text = _reason([error])
                self._report(f"{channel.name} {text}", f"link {self.name}: {channel.name}: {text}")
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _subscribe(self, nc: Client) -> None:
        prefix = self.plan.prefix
        self._inbox = nc.new_inbox()
        await nc.subscribe(f"{self._inbox}.*", cb=self._hear_nobody)
        for channel in self.exports:
            await nc.subscribe(f"{prefix}.j.{channel}", cb=_bound(self._hear_hello, channel))
        for channel in self.imports:
            await nc.subscribe(
                f"{prefix}.m.{channel}.>",
                cb=_bound(self._receive, channel),
                pending_msgs_limit=_INCOMING_MESSAGES_MAX,
                pending_bytes_limit=_INCOMING_BYTES_MAX,
            )
        await nc.flush()

    async def _greet(self) -> None:
        """Say hello now and again, and forget peers that do not."""
        for channel in self.exports:
            self._exchange.beat(self, channel)
        while True:
            for channel in self.imports:
                await self._say_hello(channel)
            now = asyncio.get_running_loop().time()
            for silent in [it for it in self._peers.values() if now - it.heard > _PEER_SECONDS]:
                del self._peers[silent.origin]
            self._show_peers()
            await asyncio.sleep(_HELLO_SECONDS * random.uniform(0.8, 1.2))


def _size_bytes(item: Crossing | Heartbeat) -> int:
    content = len(item.key) + len(item.payload) if isinstance(item, Crossing) else 0
    return content + _MESSAGE_BYTES


def _bound(handle: Any, channel: str) -> Any:
    async def handle_message(msg: Msg) -> None:
        await handle(channel, msg)

    return handle_message


def _reason(errors: list[Exception]) -> str:
    """The first error that says something, in one line."""
    for error in errors:
        if str(error):
            return " ".join(str(error).split())
    return type(errors[0]).__name__ if errors else "unknown"
