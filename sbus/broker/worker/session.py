"""One client as its worker knows it: what it is, what it set, what it sent that is not yet done.

Packets are read from the socket in batches. Of a batch, messages that follow each other make a
*run*, which gets its place in the order as a whole; every other packet is a step of its own. What
is not done when the client's turn ends stays here, bounded by one batch, and nothing more is read
until it is done: that is how a client is held back.

This module does not know the order, the other clients, or what a control key does.
"""

import socket
import time
from collections.abc import Callable

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.backpressure import Backpressure
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.broker.worker.publish_batch import PublishBatch
from sbus.broker.worker.router import Route
from sbus.errors import ClientFault, Misbehaviour
from sbus.limits import Limits
from sbus.shared.accounts import Account
from sbus.unix.closing import is_hung_up
from sbus.unix.credentials import Credentials

_MESSAGE = b"MSG "


class Session:
    """A client of this worker's. Owns `sock`."""

    __slots__ = (
        "_bytes_max",
        "_next",
        "_packet_bytes_max",
        "_packets",
        "_packets_max",
        "account",
        "backpressure",
        "bytes_in",
        "credentials",
        "echo",
        "ended",
        "holding_patterns",
        "id",
        "in_line",
        "inquiring",
        "messages_in",
        "more",
        "outbox",
        "patterns",
        "profile",
        "received_us",
        "refused",
        "secret_recipient",
        "sock",
        "subscription_bytes",
        "subscriptions",
        "uid",
        "waiting_bytes",
    )

    def __init__(
        self,
        number: int,
        credentials: Credentials,
        account: Account,
        sock: socket.socket,
        limits: Limits,
    ) -> None:
        self.id = number
        self.account = account
        """Its user's."""
        self.credentials = credentials
        self.uid = credentials.uid
        self.sock = sock
        self.outbox: Outbox
        self.secret_recipient: SecretRecipient
        self.profile: AccessProfile
        self.patterns: dict[bytes, int] = {}
        """How often each pattern stands in the client's multiset."""
        self.subscriptions = 0
        self.subscription_bytes = 0
        """What its patterns add up to, as limits count them."""
        self.backpressure: Backpressure | None = None
        """What it holds publishers back by, if it chose to and there was a place for it."""
        self.holding_patterns: set[bytes] = set()
        """Those of its patterns that all workers know to hold publishers."""
        self.echo = True
        self.in_line = False
        self.inquiring = False
        """It wants to know what only the front can tell, and is not read until it does."""
        self.more = False
        """There may be more to read than the last batch."""
        self.ended = False
        """The client sends no more."""
        self.received_us = 0
        """When the batch was read, of `time.monotonic_ns`."""
        self.messages_in = 0
        """Published so far."""
        self.bytes_in = 0
        """Read so far, whatever it was."""
        self.refused = 0
        """Packets refused so far."""
        self.waiting_bytes = 0
        """What its user is charged for packets that were read and cannot be done yet."""
        self._packets: list[bytes] = []
        self._next = 0
        self._packets_max = limits.batch_packets_max
        self._bytes_max = limits.batch_bytes_max
        self._packet_bytes_max = limits.packet_bytes_max

    # -- reading -------------------------------------------------------------------------------
    def receive(self) -> int:
        """Read the next batch, and say of how many bytes; to be called once the last one is done.

        Raises OSError.
        """
        packets: list[bytes] = []
        self._packets = packets
        self._next = 0
        self.more = False
        receive = self.sock.recv
        size = self._packet_bytes_max + 1
        room = self._bytes_max
        self.received_us = time.monotonic_ns() // 1000
        try:
            while len(packets) < self._packets_max and room > 0:
                packet = receive(size)
                packets.append(packet)
                room -= len(packet)
                if not packet:
                    self._at_empty_packet()
                    break
            else:
                self.more = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            # The peer closed without reading everything; what it sent before can still be read.
            self.more = True
        read_bytes = self._bytes_max - room
        self.bytes_in += read_bytes
        return read_bytes

    def _at_empty_packet(self) -> None:
        """Tell an empty packet, which stays in the batch as a fault, from the end."""
        if is_hung_up(self.sock):
            self._packets.pop()
            self.ended = True

    # -- what was read -------------------------------------------------------------------------
    def has_work(self) -> bool:
        """Whether something that was read is not done."""
        return self._next < len(self._packets)

    def gather(
        self,
        recent: dict[bytes, Route],
        miss: Callable[[bytes], Route],
        cost_max: int,
    ) -> PublishBatch:
        """Take the messages at the head of the pending packets, up to this cost.

        The batch ends before any other packet, and before a message that may not be published.
        """
        batch = PublishBatch()
        packets = self._packets
        messages = batch.messages
        count, size_max = len(packets), self._packet_bytes_max
        at = self._next
        deliveries = delivery_bytes = 0
        # `at` counts the messages, each of which costs 1.
        cost_left = cost_max + at
        while at < count and deliveries + at < cost_left:
            packet = packets[at]
            size = len(packet)
            if packet[:4] != _MESSAGE or size > size_max:
                break
            end = packet.find(b"\0", 4)
            if end < 0:
                break
            key = packet[4:end]
            route = recent.get(key)
            if route is None:
                began_at = time.perf_counter()
                try:
                    route = miss(key)
                except ClientFault:
                    break
                batch.charge_lookup(time.perf_counter() - began_at)
                cost_left = cost_max + self._next - batch.lookup_cost
            if not self.echo:
                route = self.own_route(route)
            messages.append((packet, key, route))
            fan_out = route.fan_out
            deliveries += fan_out
            delivery_bytes += size * fan_out
            at += 1
        self._next = at
        batch.deliveries = deliveries
        batch.delivery_bytes = delivery_bytes
        return batch

    def put_back(self, batch: PublishBatch) -> None:
        """Make the messages of a batch that were put off pending again."""
        self._next -= len(batch.put_off)

    def keep_rest(self) -> int:
        """Keep nothing but what is not done; returns how many bytes that is."""
        self._packets = self._packets[self._next :]
        self._next = 0
        return sum(map(len, self._packets))

    def own_route(self, route: Route) -> Route:
        """The route of a message of this client's own."""
        return route if self.echo else route.without(self.outbox, self.id)

    def peek(self) -> bytes | None:
        """The next packet that is not done, or None. Raises Misbehaviour for one over the limit."""
        if self._next >= len(self._packets):
            return None
        packet = self._packets[self._next]
        if len(packet) > self._packet_bytes_max:
            raise Misbehaviour(
                "packet-too-long", f"packets have at most {self._packet_bytes_max} bytes"
            )
        return packet

    def skip(self) -> None:
        """The packet that `peek` gave is done."""
        self._next += 1
