"""A connection to a bus that never waits: a socket, an inbox, and the packets between them.

Everything here is done at once or not at all. A client asks again when the socket is writable or
readable, and how it waits for that is all it adds. The packets of the public calls are put
together here as well, so that both clients say the same.

This module does not know trio, and reads no clock.
"""

import errno
import os
import socket
from typing import Generic, TypedDict

from sbus.client.barrier import Questions, barrier_of
from sbus.client.inbox import Inbox, Item, Losses
from sbus.errors import (
    AddressError,
    ConfigurationError,
    Disconnected,
    PacketRefused,
    ProtocolViolation,
)
from sbus.limits import Limits
from sbus.protocol import controls
from sbus.protocol.keys import DIALECTS
from sbus.protocol.packets import encode_control
from sbus.unix.address import DEFAULT_ADDRESS, parse_address
from sbus.unix.errno_sets import PEER_GONE

PACKET_BYTES_MAX = Limits().packet_bytes_max
INBOX_MESSAGES_MAX = 2 * Limits().backlog_messages_max
"""A bus with default limits keeps half as many for one client, so an answer always gets through."""
INBOX_BYTES_MAX = 4 * Limits().backlog_bytes_max
"""Likewise, with room for what the socket itself holds."""
PACKET_OVERHEAD_BYTES = 32
"""What the kernel asks `SO_SNDBUF` to hold besides the packet, see unix_dgram_sendmsg()."""
LAST_WORD_SECONDS_MAX = 2.0
"""How long a client that can no longer send waits to be told why."""
NO_LAST_WORD = "the bus takes nothing more from this client and did not say why"
CONNECT_RETRY_SECONDS = 0.01
"""Pause before connecting again while the bus has more callers than it keeps in line; the kernel
has no way to tell when that changes."""
READ_PACKETS_MAX = 64
"""Packets read at a time where the user asked for one."""

_ADVICE = {
    errno.ENOENT: "is sbusd running, and is this its address?",
    errno.ECONNREFUSED: "is sbusd running? Nothing listens there",
    errno.EACCES: "only those whom the socket and its directories let through may use this bus",
    errno.EPERM: "only those whom the socket and its directories let through may use this bus",
    errno.EPROTOTYPE: "that socket is of another kind, and no sbus",
    errno.ENOTDIR: "is this the address of a bus?",
}


class LinkOptions(TypedDict, total=False):
    """What `connect` takes besides the address.

    `dialect`: the one the bus was started with, "slash" (default) or "dot".
    `packet_bytes_max`: the bus's own limit, where it differs from 409,600 bytes.
    `inbox_messages_max`, `inbox_bytes_max`: how much may wait here, unread by the user, while an
    answer is looked for behind it.
    """

    dialect: str
    packet_bytes_max: int
    inbox_messages_max: int
    inbox_bytes_max: int


class Link(Generic[Item]):
    """One connection, from before it is connected until it is closed."""

    def __init__(self, address: str | None, losses: Losses, options: LinkOptions) -> None:
        """Prepare a connection to `address`, `$SBUS_ADDRESS` or the default, in this order.

        Raises AddressError, or ConfigurationError for options that cannot be.
        """
        name = options.get("dialect", "slash")
        if name not in DIALECTS:
            raise ConfigurationError(f"no dialect is called {name!r}: {' or '.join(DIALECTS)}")
        self.dialect = DIALECTS[name]
        self.address = address if address is not None else default_address()
        self.closed = False
        self.barrier = barrier_of(self.dialect)
        self.inbox: Inbox[Item] = Inbox(
            self.barrier,
            losses=losses,
            messages_max=options.get("inbox_messages_max", INBOX_MESSAGES_MAX),
            bytes_max=options.get("inbox_bytes_max", INBOX_BYTES_MAX),
        )
        self._sockaddr = parse_address(self.address).sockaddr()
        self._packet_bytes_max = options.get("packet_bytes_max", PACKET_BYTES_MAX)
        self._view = memoryview(bytearray(self._packet_bytes_max))
        self.sock = open_socket(self._packet_bytes_max)

    # -- connecting and closing ----------------------------------------------------------------

    def connect_nowait(self) -> bool:
        """Whether it is connected now; False while the bus has too many callers in line.

        Raises AddressError, in one line: where, why, and what to do.
        """
        try:
            self.sock.connect(self._sockaddr)
        except BlockingIOError:
            return False
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0)
            text = f"cannot connect to {self.address}: {error.strerror}"
            raise AddressError(f"{text}: {advice}" if advice else text) from error
        return True

    def close(self) -> None:
        """Close the socket, now and for good; what nobody received is gone."""
        self.closed = True
        self.inbox.discard()
        self.inbox.end(Disconnected, "this program has closed the connection")
        self.sock.close()

    # -- packets out ---------------------------------------------------------------------------

    def send_nowait(self, packet: bytes) -> bool:
        """Whether the bus took it; False while it holds this client back.

        Raises PacketRefused `packet-too-long` for what must not be sent, Disconnected when the
        end is already known, and BrokenPipeError when the bus is gone, or going: then the reason
        may be on its way.
        """
        if len(packet) > self._packet_bytes_max:
            raise PacketRefused(
                "packet-too-long",
                f"not sent: the packet would have {len(packet)} bytes, at most "
                f"{self._packet_bytes_max} may be; send it in parts",
            )
        self.inbox.raise_end()
        try:
            self.sock.send(packet)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in PEER_GONE:
                raise BrokenPipeError(error.errno, error.strerror) from error
            raise
        return True

    def control_packet(self, key: bytes, payload: bytes | None) -> bytes:
        """A control message; raises as `must_have_control_messages` does."""
        self.must_have_control_messages()
        return encode_control(key, payload)

    def must_have_control_messages(self) -> None:
        """ConfigurationError in the dialect that has none."""
        if not self.dialect.has_control_messages:
            raise ConfigurationError(
                f"the {self.dialect.name} dialect has no control messages: "
                "there is neither whoami nor me"
            )

    def questions(self, control_key: bytes) -> Questions | None:
        """What this control message is one of, if the bus answers it."""
        if control_key == controls.WHOAMI:
            return self.barrier
        return self.inbox.me if control_key == controls.ME else None

    # -- packets in ----------------------------------------------------------------------------

    def read_nowait(self, packets_max: int) -> bool:
        """Move up to `packets_max` packets from the socket to the inbox; False: none were there.

        Raises InboxFull when there is no room for one. The end of the connection counts as a
        packet.
        """
        inbox = self.inbox
        inbox.raise_full()
        receive_into, view = self.sock.recv_into, self._view
        found = False
        for _ in range(packets_max):
            if inbox.ended or not inbox.has_room:
                break
            try:
                length = receive_into(view, 0, socket.MSG_TRUNC)
            except BlockingIOError:
                break
            except ConnectionResetError:
                # Said once, and before the packets that are still there, and their end.
                continue
            found = True
            if not length:
                inbox.feed_end_of_connection()
            elif length > self._packet_bytes_max:
                inbox.end(ProtocolViolation, self._describe_oversize(length))
            else:
                inbox.feed(bytes(view[:length]))
        return found

    def _describe_oversize(self, length: int) -> str:
        return (
            f"a packet of {length} bytes arrived, at most {self._packet_bytes_max} were expected: "
            f"connect with packet_bytes_max={length} or more"
        )


def open_socket(packet_bytes_max: int) -> socket.socket:
    """A socket that is not connected, does not block, and can send packets of this size.

    Raises ConfigurationError where the kernel does not let this user have one.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"cannot open a socket: {error.strerror}") from error
    needed = packet_bytes_max + PACKET_OVERHEAD_BYTES
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < needed:
        # The kernel doubles what it is asked for, and cuts it to its ceiling before that.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, needed // 2 + 1)
        granted = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        if granted < needed:
            sock.close()
            raise ConfigurationError(
                f"packets of {packet_bytes_max} bytes cannot be sent from here: the kernel grants "
                f"a socket {granted} bytes; ask for less with packet_bytes_max, or set "
                f"net.core.wmem_max to {needed // 2 + 1} or more"
            )
    return sock


def to_bytes(text: bytes | str) -> bytes:
    """A key, pattern or payload as it goes into a packet; text goes as UTF-8."""
    return text.encode() if isinstance(text, str) else text


def default_address() -> str:
    """Where a bus is when nobody says otherwise."""
    return os.environ.get("SBUS_ADDRESS") or DEFAULT_ADDRESS
