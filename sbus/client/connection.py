"""A connection as programs with trio or asyncio use it."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from sbus.client.inbox import InboxStatistics
from sbus.client.last_values import joined, serve
from sbus.client.member_watch import MemberWatch, list_members, watching
from sbus.client.message_queue import Item
from sbus.client.names import raise_refusal
from sbus.client.packet_encoder import to_bytes
from sbus.client.replies import REQUEST_SECONDS
from sbus.client.request_reply import RequestStream, answering, request
from sbus.client.requests import Identity
from sbus.client.snapshot import JOIN_SECONDS
from sbus.client.subscription import Subscription, subscription
from sbus.client.value_store import BYTES_MAX, KEYS_MAX, ValueStore
from sbus.client.waiting_link import Receiving, WaitingLink
from sbus.client.worker_group import WorkerGroup, working
from sbus.protocol.last_values import request_key
from sbus.protocol.packets import SUBSCRIBE_WORD
from sbus.protocol.presence import Member
from sbus.protocol.receipts import Receipt

if TYPE_CHECKING:
    from sbus.protocol.admin_results import MeResult


class Connection(Receiving[Item]):
    """A connection to a bus, made by `connect`; iterating over it receives messages.

    Every call except `close` and `statistics` raises Disconnected when the bus has gone, with the
    reason if there was one, or waits for the next bus if it is to `reconnect`; and it raises
    ProtocolViolation when the peer is not a bus. Text is sent as UTF-8; a NUL in a key or pattern
    is a ValueError, and any other mistake in one is PacketRefused. Section names refer to the
    protocol.
    """

    def __init__(self, io: WaitingLink[Item]) -> None:
        self._io: WaitingLink[Item] = io
        self._link = io.link

    # -- sending -------------------------------------------------------------------------------

    async def subscribe(self, pattern: bytes | str) -> None:
        """Subscribe to `pattern`, once more than before ("Transport").

        The subscription is in force for every message that is published after a later `sync`.
        """
        packet = self._link.encoder.subscribe(pattern)
        await self._io.send(packet)
        self._link.inbox.routes.note_subscribed(packet)

    async def unsubscribe(self, pattern: bytes | str) -> None:
        """Undo one `subscribe` with the same pattern ("Transport")."""
        packet = self._link.encoder.unsubscribe(pattern)
        await self._io.send(packet)
        self._link.inbox.routes.note_unsubscribed(packet)

    async def publish(self, key: bytes | str, payload: bytes | str = b"") -> None:
        """Publish a message; waits while the bus holds this client back, and reads meanwhile. If
        too many messages have arrived, it waits until another task receives some of them.

        If it is cancelled, nothing was sent. Raises PacketRefused for more than `packet_bytes_max`
        bytes. A refusal by the bus is raised by a later `sync`, `whoami` or `receive` of the same
        task, or logged if it may be another task's; who must know uses `publish_with_receipt`.
        """
        await self._io.send(self._link.encoder.publish(key, payload))

    async def publish_many(self, key: bytes | str, payloads: Iterable[bytes | str]) -> None:
        """Publish a message for each payload, in less time than one by one.

        Raises the same as `publish`; then, or if it is cancelled, some may have been sent.
        """
        await self._io.send_many(self._link.encoder.publish_many(key, payloads))

    async def publish_all(self, messages: Iterable[tuple[bytes | str, bytes | str]]) -> None:
        """Publish a message for each key and payload, in less time than one by one; otherwise as
        `publish_many`."""
        await self._io.send_many(self._link.encoder.publish_all(messages))

    async def publish_with_receipt(self, key: bytes | str, payload: bytes | str = b"") -> Receipt:
        """Publish a message, and return what has become of it: how many clients it was sent to,
        for how many it waits, and how many have lost it.

        Raises PacketRefused if it was not published, or with the code `packets-lost` if a worker of
        the bus died and nobody knows, and ConnectionInterrupted if the connection was lost and made
        again meanwhile. ConfigurationError in the dot dialect.
        """
        self._link.encoder.must_have_control_messages()
        return await self._io.publish_with_receipt(self._link.encoder.publish(key, payload))

    async def control(self, key: bytes | str, payload: bytes | str | None = None) -> None:
        """Send a control message ("Flood control"); ConfigurationError in the dot dialect, and for
        another order than `order/queue` while a request, a worker group, a watch of members or
        last values are open, which need that."""
        packet, requests = self._link.control_packet(key, payload)
        await self._io.send(packet, requests)
        self._link.order.note_sent(packet)

    # -- asking --------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Return when the bus has processed everything that was sent before.

        Raises PacketRefused if it refused any of that, as far as this task has sent it;
        MessagesUnconfirmed if the connection was lost meanwhile, and InboxFull when too many
        messages come before its reply. In the dot dialect the reply is a message to oneself, and a
        bus that drops messages for this client may drop it: use a timeout there.
        """
        await self._io.ask(self._link.barrier)

    async def whoami(self) -> Identity:
        """This client's peer credentials ("Secret messages"); includes a `sync`.

        ConfigurationError in the dot dialect.
        """
        self._link.encoder.must_have_control_messages()
        await self._io.ask(self._link.barrier)
        return self._link.identity()

    async def me(self) -> "MeResult":
        """What the bus knows about this client's user: clients, subscriptions, losses, limits.

        Includes a `sync`. ConfigurationError in the dot dialect. A bus of an earlier version does
        not reply: use a timeout.
        """
        self._link.encoder.must_have_control_messages()
        await self._io.ask(self._link.inbox.me)
        return self._link.inbox.me.result()

    # -- receiving -----------------------------------------------------------------------------

    async def receive(self) -> Item:
        """The next message. If it is cancelled, none was taken.

        Raises MessagesLost exactly where messages are missing (unless losses are reported), and
        PacketRefused for packets that this task has sent; in both cases the next call continues.
        """
        return await self._io.take(self._link.inbox.own)

    async def receive_many(self, limit: int = 1024) -> list[Item]:
        """Up to `limit` (at least 1) messages; waits until there is one.

        Raises the same as `receive`; a loss after other messages is raised by the next call.
        """
        return await self._io.take_many(self._link.inbox.own, limit)

    def subscription(
        self, pattern: bytes | str, *more: bytes | str
    ) -> AbstractAsyncContextManager[Subscription[Item]]:
        """`async with bus.subscription("a/*", "b/") as messages`: a stream of its own of the
        messages that match one of these patterns, each message once; in force when the block
        begins.

        A connection can have several. Each has a queue of `inbox_messages_max` and
        `inbox_bytes_max`; when that is full, it loses messages, and the others do not. The
        connection itself then receives what matches its own subscriptions, likewise.
        """
        packets = list(map(self._link.encoder.subscribe, (pattern, *more)))
        return subscription(self._io, packets)

    # -- names ---------------------------------------------------------------------------------

    async def join(
        self, name: bytes | str, *, will: tuple[bytes | str, bytes | str] | None = None
    ) -> None:
        """Take a name, by which others see this client ("Presence"). When it goes without `leave`,
        the bus publishes the `will`, a key and a payload.

        Raises PacketRefused, with the code `name-taken` if another client of this user has it. A
        connection that was made again takes its name again, and tries for about two seconds while
        that is taken; if it cannot, the next call raises that. ConfigurationError in the dot
        dialect.
        """
        self._link.encoder.must_have_control_messages()
        request = self._link.inbox.names.join(name, will)
        await self._io.ask(request)
        raise_refusal(request)

    async def leave(self) -> None:
        """Give the name up, if this client has one. Its will is not published."""
        self._link.encoder.must_have_control_messages()
        await self._io.ask(self._link.inbox.names.leave())

    async def members(self, pattern: bytes | str = "*/*") -> list[Member]:
        """Who has a name that matches `UID/NAME-PATTERN` ("Presence"); includes a `sync`."""
        self._link.encoder.must_have_control_messages()
        return await list_members(self._io, pattern)

    def watch_members(
        self, pattern: bytes | str = "*/*"
    ) -> AbstractAsyncContextManager[MemberWatch]:
        """`async with bus.watch_members("*/worker-*") as watch`: `watch.members()` are those who
        are there, and iterating over it receives each change. Everybody who watches sees the same
        members at the same place among the messages."""
        self._link.encoder.must_have_control_messages()
        return watching(self._io, pattern)

    # -- requests and answers ------------------------------------------------------------------

    async def request(
        self,
        key: bytes | str,
        payload: bytes | str = b"",
        *,
        timeout_seconds: float | None = REQUEST_SECONDS,
    ) -> bytes:
        """Publish a request, and return the payload of the first answer.

        Raises TimeoutError, NobodyListens at once if no client receives it, PacketRefused,
        RequestFailed if the answer is that it failed, and ConnectionInterrupted if the connection
        was lost and made again meanwhile. Tasks may make requests at the same time.
        ConfigurationError in the dot dialect.
        """
        self._link.encoder.must_have_control_messages()
        return await request(self._io, key, payload, timeout_seconds)

    def requests(
        self, pattern: bytes | str, *more: bytes | str
    ) -> AbstractAsyncContextManager[RequestStream]:
        """`async with bus.requests("sums/*") as requests`: a stream of the requests whose keys
        match one of these patterns; in force when the block begins. See `subscription`."""
        packets = list(map(self._link.encoder.subscribe, (pattern, *more)))
        return answering(self._io, packets)

    # -- worker groups -------------------------------------------------------------------------

    def worker_group(
        self, name: bytes | str, pattern: bytes | str, *more: bytes | str
    ) -> AbstractAsyncContextManager[WorkerGroup]:
        """`async with bus.worker_group("resizers", "jobs/*") as jobs`: be one of the clients of
        this user among which the messages that match a pattern are shared, as jobs: each goes to
        one of them, and if that goes away before the job is `done`, to another one.

        Needs `connect(sender=True)`, and takes a name as `join` does. Raises GroupRefused unless
        the members all see each other. ConfigurationError in the dot dialect.
        """
        self._link.encoder.must_have_control_messages()
        packets = list(map(self._link.encoder.subscribe, (pattern, *more)))
        return working(self._io, to_bytes(name, "a name"), packets)

    # -- last values ---------------------------------------------------------------------------

    def last_values(
        self,
        pattern: bytes | str,
        *,
        uid: int | None = None,
        timeout_seconds: float | None = JOIN_SECONDS,
    ) -> AbstractAsyncContextManager[Subscription[Item]]:
        """`async with bus.last_values("lamps/") as messages`: the newest message of each key that
        matches, and then all that follow, none missing and none twice.

        A service has to keep them, see `serve_last_values`. Only one that this client's user or
        root runs is trusted; with `uid`, only one that this user runs. Otherwise a stream
        as `subscription` gives. A gap at its beginning tells how many messages the service has not
        kept. Raises TimeoutError if none has come within `timeout_seconds`, RequestFailed if no
        trusted service keeps all that matches, or it takes more than `inbox_bytes_max`,
        and PacketRefused for a pattern that is too long. ConfigurationError in the dot dialect.
        """
        self._link.encoder.must_have_control_messages()
        packet = self._link.encoder.subscribe(pattern)
        self._check_request_key(packet)
        return joined(self._io, packet, uid, timeout_seconds)

    async def serve_last_values(
        self,
        pattern: bytes | str,
        *more: bytes | str,
        keys_max: int = KEYS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        """Keep the newest message of each key that matches one of these patterns, from now on, for
        clients that ask with `last_values`. Does not return, and asks for senders.

        At most `keys_max` keys, and `bytes_max` bytes of keys and payloads: beyond that, the values
        that have not changed for the longest time are forgotten.
        """
        packets = list(map(self._link.encoder.subscribe, (pattern, *more)))
        patterns = [self._check_request_key(packet) for packet in packets]
        store = ValueStore(
            patterns,
            self._link.dialect,
            keys_max=keys_max,
            bytes_max=bytes_max,
            packet_bytes_max=self._link.packet_bytes_max,
        )
        await serve(self._io, patterns, store)

    def _check_request_key(self, packet: bytes) -> bytes:
        """The pattern of this `SUB`. Raises PacketRefused if the key for requests for its last
        values is none that the bus accepts."""
        pattern = packet.removeprefix(SUBSCRIBE_WORD)
        self._link.encoder.checked_pattern(request_key(pattern))
        return pattern

    # -- the connection itself -----------------------------------------------------------------

    @property
    def address(self) -> str:
        return self._link.address

    def statistics(self) -> InboxStatistics:
        return self._link.inbox.statistics()

    def close(self) -> None:
        """Close the connection; iteration in other tasks ends, other calls raise Disconnected.

        Only a `sync` before it tells whether the bus accepted what was sent.
        """
        self._io.close()
