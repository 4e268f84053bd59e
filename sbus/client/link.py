"""A connection to a bus that never waits: a socket, an inbox, and the packets between them.

Every call does its work at once or not at all. Both client libraries try again when the socket is
readable or writable, and only add the way of waiting for that.

With `reconnect`, a connection that the bus has closed is *lost*: nothing is sent until
`reconnecting.py` has made it again. `interruptions` tells callers that wait for a reply to ask
again.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic
from weakref import WeakSet

from sbus.client.chosen_order import ChosenOrder
from sbus.client.inbox import Inbox
from sbus.client.loss_barrier import LossBarrier
from sbus.client.message_queue import Item, Losses, MessageQueue
from sbus.client.options import LinkOptions, check_options, limits_of, settings_of
from sbus.client.packet_encoder import PacketEncoder
from sbus.client.packet_reader import PacketReader, PeekingReader
from sbus.client.reconnection import Reconnection
from sbus.client.requests import Identity, Requests, barrier_of
from sbus.client.sockets import BUS_ADVICE, connect_error, open_socket
from sbus.errors import (
    ConnectionInterrupted,
    Disconnected,
    PacketRefused,
    ProtocolViolation,
)
from sbus.limits import Limits
from sbus.protocol import controls
from sbus.protocol.codes import FINAL_CODES, NOT_ADMITTED, PACKETS_LOST
from sbus.protocol.keys import DIALECTS, SLASH
from sbus.protocol.packets import CONTROL_WORD, NUL, PUBLISH_WORD
from sbus.unix.address import parse_address
from sbus.unix.default_address import default_address
from sbus.unix.errno_sets import PEER_GONE

PACKET_BYTES_MAX = Limits().packet_bytes_max
INBOX_MESSAGES_MAX = 2 * Limits().backlog_messages_max
"""A bus with default limits keeps half as many for one client, so there is room for a reply."""
INBOX_BYTES_MAX = 4 * Limits().backlog_bytes_max
"""Likewise, with room for what the socket contains."""
REASON_SECONDS_MAX = 2.0
"""How long a client that can no longer send waits for the reason."""
CONNECT_RETRY_SECONDS = 0.01
"""Pause before connecting again while the listen queue of the bus is full; the kernel does not
report when that changes."""
SEND_RETRY_SECONDS = 0.01
"""Pause before sending and reading again, when both have to go on."""
SEND_PACKETS_MAX = 64
"""Packets sent at a time, until other tasks have a turn."""
READ_PACKETS_MAX = 64
"""Packets read at a time when the user wants one."""


_links: "WeakSet[Link[Any]]" = WeakSet()
"""Those of this process."""


def _end_in_child() -> None:
    for link in _links:
        link.end_in_child()


os.register_at_fork(after_in_child=_end_in_child)


class Link(Generic[Item]):
    """One connection: not yet connected, connected, closed."""

    def __init__(self, address: str | None, losses: Losses | None, options: LinkOptions) -> None:
        """Prepare a connection to `address`, `$SBUS_ADDRESS` or the default, in this order.

        Raises AddressError, ConfigurationError for invalid options, and TypeError for others.
        """
        self.can_reconnect = options.get("reconnect", False)
        self._losses: Losses = losses or ("log" if self.can_reconnect else "raise")
        check_options(self._losses, options)
        self.dialect = DIALECTS[options.get("dialect", SLASH.name)]
        self.encoder = PacketEncoder(self.dialect, limits_of(options))
        self.address = address if address is not None else default_address()
        self.closed = False
        self.is_lost = False
        self.is_opening = False
        """No bus has answered it yet."""
        self.interruptions = 0
        """How often it was lost, or a worker died: what was asked before has to be asked again."""
        self.before_close: Callable[[int], None] = lambda fd: None
        """Called with the descriptor of a socket that is to be closed."""
        self.after_fork: Callable[[], None] = lambda: None
        """Called in the child, where the connection has ended."""
        self.barrier = barrier_of(self.dialect)
        self.order = ChosenOrder(is_fixed=not self.dialect.has_control_messages)
        self.queue_messages_max = options.get("inbox_messages_max", INBOX_MESSAGES_MAX)
        self.queue_bytes_max = options.get("inbox_bytes_max", INBOX_BYTES_MAX)
        logs_losses = self._losses == "log"
        self.inbox: Inbox[Item] = Inbox(
            self.barrier, self.new_queue(), self.dialect, logs_losses=logs_losses
        )
        self.inbox.mend_lost_packets = self._mend_lost_packets
        self._requests = (self.barrier, self.inbox.me, self.inbox.names)
        self.loss_barrier = LossBarrier(*self._requests, self.inbox.receipts)
        self.inbox.note_sync = self.loss_barrier.replied
        self._sockaddr = parse_address(self.address).sockaddr()
        self.packet_bytes_max = options.get("packet_bytes_max", PACKET_BYTES_MAX)
        self.greetings = [self.barrier.greeting, *settings_of(options)]
        """The packets that a connection begins with."""
        self._reader = PacketReader(self.packet_bytes_max)
        self.senders_needed = 0
        """Calls of the library that need the senders of messages."""
        if options.get("sender", False):
            self.expect_senders()
            self.inbox.routes.shows_senders = True
        self.sock = open_socket(self.packet_bytes_max)
        self.has_ended = False
        """The bus will send nothing more to the present socket."""
        self.interruption = ""
        """Why the connection was lost."""
        self.reconnection: Reconnection | None = None
        if self.can_reconnect:
            self.reconnection = Reconnection(self.barrier)
            self.inbox.note_refusal = self.reconnection.note_refusal
        _links.add(self)

    def new_queue(self, losses: Losses | None = None) -> MessageQueue[Item]:
        """A queue with the limits of this connection."""
        return MessageQueue(
            losses=losses or self._losses,
            messages_max=self.queue_messages_max,
            bytes_max=self.queue_bytes_max,
        )

    # -- connecting and closing ----------------------------------------------------------------

    def connect_nowait(self) -> bool:
        """Whether it is connected now; False while the listen queue of the bus is full.

        Raises AddressError.
        """
        try:
            self.sock.connect(self._sockaddr)
        except BlockingIOError:
            return False
        except OSError as error:
            raise connect_error(self.address, error, BUS_ADVICE) from error
        return True

    def adopt(self, sock: socket.socket) -> None:
        """Go on with this socket, on which another connection has had no end."""
        self.sock.close()
        self.sock = sock

    def peek(self) -> None:
        """From now on, leave what is read in the socket."""
        self._reader = PeekingReader(self._reader.packet_bytes_max)

    def close(self) -> None:
        """Close the socket; messages that were not received are gone."""
        self._end()
        self.inbox.discard()
        self._close_socket()

    def shut_down(self) -> None:
        """Have another thread that uses the connection see that it has ended; `close` follows."""
        self._end()
        with suppress(OSError):  # that thread has just closed it, to connect again
            self.sock.shutdown(socket.SHUT_RDWR)

    def end_in_child(self) -> None:
        """The process has forked, and this is the child: a connection is its parent's alone. What
        the child sent on it would be the parent's, and what it read would be missing there."""
        self.inbox.discard()
        self.inbox.end(Disconnected, "this connection is that of the parent process: connect again")
        self.after_fork()

    def _end(self) -> None:
        self.closed = True
        self.inbox.end(Disconnected, "this program has closed the connection")

    def _close_socket(self) -> None:
        if self.sock.fileno() >= 0:
            self.before_close(self.sock.fileno())
        self.sock.close()

    # -- losing the connection -----------------------------------------------------------------

    def replace_socket(self) -> None:
        """Begin again with a socket that is not connected."""
        sock = open_socket(self.packet_bytes_max)
        self._close_socket()
        self.sock = sock
        self.has_ended = False
        self.abandon_requests()

    def _lose(self, reason: str) -> None:
        """The bus has gone; only for connections that can be made again."""
        assert self.reconnection is not None
        if not self.is_lost:
            self.interruption = reason
        self.is_lost = True
        self.has_ended = True
        self.interruptions += 1
        self.inbox.add_unconfirmed(self.reconnection.note_lost())
        self.inbox.fail_all(ConnectionInterrupted(reason))
        self.abandon_requests()

    def abandon_requests(self) -> None:
        """No reply will come to what was asked so far."""
        for requests in self._requests:
            requests.abandon_all()
        self.inbox.refusals.abandon_sections()

    def _can_mend(self, code: str | None) -> bool:
        """Whether to connect again after an end with this code."""
        if code is None and self.is_opening:
            return False  # no bus, or one of the dot dialect
        was_admitted = self.barrier.identity is not None
        return code not in FINAL_CODES and (was_admitted or code != NOT_ADMITTED)

    # -- packets out ---------------------------------------------------------------------------

    def send_nowait(self, packet: bytes) -> bool:
        """Whether it was sent; False while the bus holds this client back.

        Raises PacketRefused `packet-too-long`, Disconnected when the end is known, and
        BrokenPipeError when the bus is gone, or going: then the reason may still arrive, or the
        connection is lost.
        """
        if len(packet) > self.packet_bytes_max:
            raise PacketRefused(
                "packet-too-long",
                f"not sent: the packet would have {len(packet)} bytes, at most "
                f"{self.packet_bytes_max} are allowed; send it in parts",
            )
        self.inbox.raise_end()
        if self.is_lost:
            raise BrokenPipeError(errno.EPIPE, self.interruption)
        if not self.send_unrecorded(packet):
            return False
        if self.reconnection is not None:
            self.reconnection.note_sent(packet)
        return True

    def send_many_nowait(self, packets: Iterator[bytes]) -> bytes | None:
        """Send one after the other; returns the first that could not be sent, for `send_nowait`,
        which says why, or None after all of them."""
        self.inbox.raise_end()
        send, longest = self.sock.send, self.packet_bytes_max
        note_sent = None if self.reconnection is None else self.reconnection.note_sent
        if self.is_lost:
            return next(packets, None)
        self.inbox.refusals.note_sent(PUBLISH_WORD)
        for packet in packets:
            if len(packet) > longest:
                return packet
            try:
                send(packet)
            except OSError:
                return packet
            if note_sent is not None:
                note_sent(packet)
        return None

    def send_unrecorded(self, packet: bytes) -> bool:
        """Whether it was sent on the present socket; nothing of it is remembered.

        Raises BrokenPipeError.
        """
        try:
            self.sock.send(packet)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in PEER_GONE:
                raise BrokenPipeError(error.errno, error.strerror) from error
            raise
        return True

    def note_request(self, packet: bytes, requests: Requests | None) -> int:
        """Returns the ticket of a packet that was sent, 0 if it is no request."""
        if requests is None:
            self.inbox.refusals.note_sent(packet)
            return 0
        ticket = requests.sent(packet)
        if requests is self.barrier:
            self.inbox.refusals.note_barrier(ticket)
            if self.reconnection is not None:
                self.reconnection.note_barrier(ticket)
        return ticket

    def control_packet(
        self, key: bytes | str, payload: bytes | str | None
    ) -> tuple[bytes, Requests | None]:
        """A control message, and the kind of request that it is, if the bus replies to it.

        Raises ConfigurationError in the dot dialect, and for an order that an open call does not
        allow.
        """
        packet = self.encoder.control(key, payload)
        self.order.check(packet)
        name = packet.removeprefix(CONTROL_WORD).partition(NUL)[0]
        if name in (controls.SENDER_ON, controls.SENDER_OFF):
            self.expect_senders()
            self.inbox.routes.shows_senders = name == controls.SENDER_ON
        return packet, {controls.WHOAMI: self.barrier, controls.ME: self.inbox.me}.get(name)

    @property
    def wants_senders(self) -> bool:
        """Whether the program has asked for the senders of messages, or a call needs them."""
        return self.inbox.routes.shows_senders or self.senders_needed > 0

    def expect_senders(self) -> None:
        """Packets will be longer by their senders."""
        self._reader = PacketReader(self.packet_bytes_max + controls.SENDER_BYTES_MAX)

    def give_up(self) -> None:
        """The bus accepts nothing more: lose the connection, or raise why, as far as the bus has
        said so."""
        self.inbox.raise_end()
        reason = "the bus accepts nothing more from this client and gave no reason"
        if self.reconnection is None:
            raise Disconnected(reason)
        if not self.is_lost:
            self._lose(reason)

    def identity(self) -> Identity:
        """From the newest reply to `whoami`."""
        assert self.barrier.identity is not None
        return self.barrier.identity

    # -- packets in ----------------------------------------------------------------------------

    def read_nowait(self, packets_max: int) -> bool:
        """Move up to `packets_max` packets from the socket to the inbox; False if there were none.

        Raises InboxFull when there is no room for one. The end of the connection counts as one.
        """
        inbox = self.inbox
        if self.loss_barrier.is_due:
            self._send_loss_barrier()
        if not self.is_lost:
            inbox.raise_full()
        if self._is_over():
            return False
        messages_max, bytes_max = packets_max, self.queue_bytes_max
        # A lost connection waits for one reply, for which there is always room.
        if not (self.is_lost or inbox.routes.never_wait):
            messages_max, bytes_max = inbox.own.room
        packets, odd_bytes = self._reader.read(self.sock, min(packets_max, messages_max), bytes_max)
        left = iter(packets)
        while (packet := inbox.feed_messages(left)) is not None:
            inbox.feed(packet)
            if self._is_over():
                return True
        if odd_bytes == 0:
            self._on_end()
        elif odd_bytes is not None:
            inbox.end(ProtocolViolation, self._describe_oversize(odd_bytes))
        return bool(packets) or odd_bytes is not None

    def _is_over(self) -> bool:
        """Whether nothing more counts that the present socket has."""
        return self.has_ended or self.inbox.ended

    def _mend_lost_packets(self) -> bool:
        """Begin anew where it matters which packets the bus has lost; whether it does. Otherwise
        those who wait for replies ask again."""
        reason = "a worker of the bus died, and had packets of this client"
        if self.reconnection is not None:
            if self.reconnection.has_unconfirmed_changes():
                self._lose(f"{reason} ({PACKETS_LOST})")
                return True
        elif self.loss_barrier.begin():
            self.interruptions += 1
            self._send_loss_barrier()
        return False

    def _send_loss_barrier(self) -> None:
        with suppress(BrokenPipeError):  # the end of the connection will be read
            if self.send_unrecorded(self.loss_barrier.encode()):
                self.loss_barrier.note_sent()

    def _on_end(self) -> None:
        self.has_ended = True
        can_mend = None if self.reconnection is None else self._can_mend
        reason = self.inbox.feed_end_of_connection(can_mend)
        if reason is not None:
            self._lose(reason)

    def _describe_oversize(self, length: int) -> str:
        return (
            f"a packet of {length} bytes arrived, at most {self.packet_bytes_max} were expected: "
            f"connect with packet_bytes_max={length} or more"
        )
