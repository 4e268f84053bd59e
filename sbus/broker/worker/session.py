"""A client as its worker knows it: its connection, its choices and its pending packets.

Packets are read from the socket in batches. Those that are not done yet are *pending*. Consecutive
messages of them make a publish batch, which gets its place in the order as a whole; every other
packet is handled by itself. Nothing more is read while packets are pending, which makes the client
wait, and bounds what it can make the worker keep to one batch.
"""

import socket
import time

import msgspec

from sbus.broker.config.access_policy import AccessProfile
from sbus.broker.delivery.backpressure import Backpressure, BackpressureRule
from sbus.broker.delivery.outbox import Outbox
from sbus.broker.delivery.secret_recipient import SecretRecipient
from sbus.broker.worker.fair_queue import BacklogSender
from sbus.broker.worker.router import Route
from sbus.compiled import SessionRecord
from sbus.errors import Misbehaviour
from sbus.limits import BYTES_PER_UNIT, Limits
from sbus.protocol.packets import PUBLISH_WORD
from sbus.shared.accounts import SUBSCRIPTION_BYTES, SUBSCRIPTIONS, WAITING_BYTES, Account
from sbus.shared.client_slots import ClientSettings, ClientSlot
from sbus.shared.log_block import Publisher
from sbus.unix.closing import is_hung_up
from sbus.unix.credentials import Credentials
from sbus.unix.fd_passing import has_descriptors, may_carry_descriptors
from sbus.unix.peer_process import PeerProcess

_LOOK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_HAS_DESCRIPTORS = "descriptors may not be attached to packets"
_BYTES_PER_NAME = 256
"""In every worker, besides the name and the will."""


class Connection(msgspec.Struct, frozen=True):
    """A client that the front admitted; `account` is its user's."""

    client: int
    credentials: Credentials
    account: Account
    sock: socket.socket
    slot: ClientSlot


class Session(SessionRecord):
    """A client of this worker. Owns the connection's socket."""

    __slots__ = (
        *("credentials", "account", "sock", "backlog_sender"),
        *("secret_recipient", "profile"),
        *("patterns", "rule_by_pattern", "subscriptions", "subscription_bytes", "backpressure"),
        *("awaits_self_service", "is_queued", "has_ended", "refused", "waiting_bytes"),
        *("is_counted", "is_leaving", "publisher", "revision", "slot", "name", "will"),
    )

    outbox: Outbox

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        profile: AccessProfile,
        limits: Limits,
    ) -> None:
        own = connection.credentials
        self.client = connection.client
        self.credentials = own
        self.account = connection.account
        self.uid, self.gid, self.pid = own.uid, own.gid, own.pid
        self.account_place = connection.account.place
        self.publisher = Publisher(self.client, own.uid, own.gid, own.pid, self.account_place)
        """As the log has it."""
        self.sock = connection.sock
        self.slot, self.slot_at = connection.slot, connection.slot.at
        self.fd = connection.sock.fileno()
        self.outbox = outbox
        self.backlog_sender = BacklogSender(self.account_place, outbox)
        process = PeerProcess(connection.sock, own.pid, own.began_at_ticks)
        self.secret_recipient = SecretRecipient(own, outbox, process)
        self.echo = True
        self.set_profile(profile)
        self.may_carry_descriptors = may_carry_descriptors(connection.sock)
        self.patterns: dict[bytes, int] = {}
        """The client's patterns, with the number of times that it has subscribed to each."""
        self.rule_by_pattern: dict[bytes, BackpressureRule] = {}
        """The back-pressure rule that is journalled with each pattern: its own, or, while that is
        being replaced, an earlier one."""
        self.subscriptions = self.subscription_bytes = 0
        """The sum over its patterns, as limits count them."""
        self.is_counted = True
        """Whether the user's account counts its subscriptions in the cells of this worker."""
        self.revision = 0
        """Changes when its patterns do, and when it gets back-pressure."""
        self.name = self.will = b""
        """By which others know it, and the message that it leaves; empty if there is none."""
        self.backpressure: Backpressure | None = None
        """None until the client chooses `block` and there is a place for it."""
        self.awaits_self_service = False
        """The front has not yet answered what the client asked; it is not read until then."""
        self.is_queued = False
        """It is in the fair queue, to be read."""
        self.is_readable = self.is_at_rest = False
        self.is_leaving = False
        """It is to be handed over, and is not read any more."""
        self.has_ended = False
        """The client sends no more."""
        self.received_us = self.messages_in = self.bytes_in = 0
        self.refused = 0
        """Packets refused so far."""
        self.waiting_bytes = 0
        """Of pending packets that have to wait, as the user's account counts them."""
        self.packets, self.done = [], 0
        self.batch_packets_max = limits.batch_packets_max
        self.batch_bytes_max = limits.batch_bytes_max
        self.packet_bytes_max = limits.packet_bytes_max

    # -- state ---------------------------------------------------------------------------------
    def is_open(self) -> bool:
        """Whether the client has not left."""
        return self.fd >= 0

    def set_profile(self, profile: AccessProfile) -> None:
        """Obey these access rules from now on."""
        self.profile = profile
        self.is_ordinary = not profile.publish

    def save_settings(self) -> None:
        """Let a successor of this worker know what the client has chosen."""
        outbox = self.outbox
        chosen = ClientSettings(
            self.echo, outbox.wants_notices, outbox.flood_control, outbox.wants_sender
        )
        self.slot.save(self.client, chosen)

    @property
    def is_stalled(self) -> bool:
        """Whether publishers are held back, or would be, until the client has room."""
        return self.backpressure is not None and self.backpressure.is_stalled

    def enable_backpressure(self, backpressure: Backpressure) -> None:
        """From now on the client can hold publishers back."""
        self.backpressure = backpressure
        self.revision += 1
        self.outbox.enable_backpressure(backpressure)

    def count_patterns(self, pattern: bytes, change: int, size_bytes: int) -> None:
        """Change the number of occurrences of a pattern; each counts as `size_bytes`."""
        count = self.patterns.get(pattern, 0) + change
        if count:
            self.patterns[pattern] = count
        else:
            del self.patterns[pattern]
        self.subscriptions += change
        self.subscription_bytes += change * size_bytes
        self.revision += 1
        if self.is_counted:
            self._count(change, change * size_bytes)

    def set_name(self, name: bytes, will: bytes) -> None:
        """The client has this name from now on, or none, and leaves this will. A name counts as a
        subscription."""
        had, before_bytes = bool(self.name), name_bytes(self.name, self.will)
        self.name, self.will = name, will
        subscriptions, size_bytes = bool(name) - had, name_bytes(name, will) - before_bytes
        self.subscriptions += subscriptions
        self.subscription_bytes += size_bytes
        if self.is_counted:
            self._count(subscriptions, size_bytes)

    def set_counted(self, is_counted: bool) -> None:
        """Have the user's account count all subscriptions in the cells of this worker, or none."""
        if is_counted != self.is_counted:
            self.is_counted = is_counted
            sign = 1 if is_counted else -1
            self._count(sign * self.subscriptions, sign * self.subscription_bytes)

    def _count(self, subscriptions: int, size_bytes: int) -> None:
        self.account.count(SUBSCRIPTIONS, subscriptions)
        self.account.count(SUBSCRIPTION_BYTES, size_bytes)

    # -- reading -------------------------------------------------------------------------------
    def receive(self) -> int:
        """Read the next batch, once nothing is pending; returns the cost. Raises OSError.

        A packet with descriptors is not read: the client is to be disconnected for it.
        """
        self.packets, self.done = [], 0
        self.is_readable = False
        self.received_us = time.monotonic_ns() // 1000
        try:
            self._receive_batch()
        except BlockingIOError:
            pass
        except ConnectionResetError:
            # The client closed without reading everything; what it sent before can still be read.
            self.is_readable = True
        self.slot.pending = len(self.packets)
        if self.packets and not self.packets[-1]:
            self.at_empty_packet()
        read_bytes = sum(map(len, self.packets))
        self.bytes_in += read_bytes
        return read_bytes // BYTES_PER_UNIT

    def _receive_batch(self) -> None:
        packets, receive = self.packets, self.sock.recv
        size = self.packet_bytes_max + 1
        room = self.batch_bytes_max
        while len(packets) < self.batch_packets_max and room > 0:
            if self.may_carry_descriptors and has_descriptors(self.sock):
                if not packets:
                    self.outbox.fault = Misbehaviour("has-descriptors", _HAS_DESCRIPTORS)
                break
            # Before it is read: a successor must not answer what comes behind a lost subscription.
            self.slot.pending = len(packets) + 1
            packet = receive(size, socket.MSG_DONTWAIT)
            packets.append(packet)
            room -= len(packet)
            if not packet.startswith(PUBLISH_WORD):
                self.slot.keep_request(packet, len(packets))
                if packet:
                    # What comes only after the reply is for another turn, so this asks now.
                    receive(1, _LOOK)
                break
        self.is_readable = not packets or bool(packets[-1])

    def at_empty_packet(self) -> None:
        """Find out whether the connection has ended or the client sent an empty packet."""
        if is_hung_up(self.sock):
            self.packets.pop()
            self.has_ended = True

    # -- pending packets -----------------------------------------------------------------------
    def has_pending(self) -> bool:
        return self.done < len(self.packets)

    def own_route(self, route: Route) -> Route:
        """The route of a message of this client's own."""
        return route if self.echo else route.without(self.outbox, self.client)

    def peek(self) -> bytes:
        """The next pending packet. Raises Misbehaviour for one over the limit."""
        packet = self.packets[self.done]
        if len(packet) > self.packet_bytes_max:
            raise Misbehaviour(
                "packet-too-long", f"packets have at most {self.packet_bytes_max} bytes"
            )
        return packet

    def skip(self) -> None:
        """The packet that `peek` returned is done."""
        self.done += 1
        if self.has_pending():
            self.share_pending()
        else:
            self.settle()

    def share_pending(self, more: int = 0) -> None:
        """Let a successor know how many packets are pending, and `more` that soon are."""
        self.slot.pending = len(self.packets) - self.done + more

    def settle(self) -> None:
        """Let a successor forget the last packet, once that is done and has its reply."""
        if not self.has_pending() and not self.awaits_reply:
            self.slot.forget_pending()

    @property
    def awaits_reply(self) -> bool:
        """Whether the client has not been sent all replies; it is not read until then."""
        return bool(self.outbox.controls_waiting) or self.awaits_self_service

    def reply(self, packet: bytes) -> None:
        """Send the reply to the packet that is being handled, or was the last one."""
        is_last = len(self.packets) - self.done <= 1
        self.tell(packet, is_reply=is_last)

    def tell(self, packet: bytes, *, is_reply: bool = False) -> None:
        """Send a control message, maybe long after the client's last turn. It is not read while
        the message waits."""
        self.outbox.send_control(packet, is_reply)
        if self.outbox.controls_waiting:
            self.is_at_rest = False

    def pend(self, request: bytes) -> None:
        """This request, which a predecessor of the worker has read, is pending."""
        self.packets, self.done = [request], 0

    def restore_pending(self, packets: list[bytes], unanswered: bytes) -> None:
        """These packets, which a worker of another bus has read, are pending; or if there are none,
        this one may have no reply yet."""
        self.packets, self.done = packets, 0
        self.share_pending()
        request = packets[-1] if packets else unanswered
        if request and not request.startswith(PUBLISH_WORD):
            self.slot.keep_request(request, max(1, len(packets)))

    def forget_done(self) -> int:
        """Keep nothing but the pending packets; returns their bytes."""
        self.packets = self.packets[self.done :]
        self.done = 0
        return sum(map(len, self.packets))

    def count_waiting(self, size_bytes: int) -> int:
        """Charge the user for pending packets of this size; returns by how much that changes."""
        change = size_bytes - self.waiting_bytes
        self.waiting_bytes = size_bytes
        self.account.count(WAITING_BYTES, change)
        return change


def name_bytes(name: bytes, will: bytes) -> int:
    """The bytes of a name, as `client_subscription_bytes_max` counts them."""
    return _BYTES_PER_NAME + len(name) + len(will) if name else 0
