"""A connection to a bus that never waits: a socket, an inbox, and the packets between them.

Every call does its work at once or not at all. Both client libraries try again when the socket is
readable or writable, and only add the way of waiting for that.
"""

import errno
import os
import socket
from collections.abc import Mapping
from typing import Generic, NoReturn, TypedDict

from sbus.client.inbox import Inbox, Item, Losses
from sbus.client.requests import Identity, Requests, barrier_of
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
"""A bus with default limits keeps half as many for one client, so there is room for a reply."""
INBOX_BYTES_MAX = 4 * Limits().backlog_bytes_max
"""Likewise, with room for what the socket contains."""
PACKET_OVERHEAD_BYTES = 32
"""What the kernel needs of `SO_SNDBUF` besides the packet, see unix_dgram_sendmsg()."""
REASON_SECONDS_MAX = 2.0
"""How long a client that can no longer send waits for the reason."""
CONNECT_RETRY_SECONDS = 0.01
"""Pause before connecting again while the listen queue of the bus is full; the kernel does not
report when that changes."""
READ_PACKETS_MAX = 64
"""Packets read at a time when the user wants one."""

_NO_ACCESS = "only users with access to the socket and its directories may use this bus"
_ADVICE = {
    errno.ENOENT: "is sbusd running, and is this its address?",
    errno.ECONNREFUSED: "is sbusd running? Nothing listens there",
    errno.EACCES: _NO_ACCESS,
    errno.EPERM: _NO_ACCESS,
    errno.EPROTOTYPE: "that socket is of another type, and no sbus",
    errno.ENOTDIR: "is this the address of a bus?",
}


class LinkOptions(TypedDict, total=False):
    """The options of `connect` besides the address.

    `dialect`: the dialect of the bus, "slash" (default) or "dot".
    `packet_bytes_max`: the limit of the bus, if it is not 409,600 bytes.
    `inbox_messages_max`, `inbox_bytes_max`: how much may wait to be received while a call looks for
    a reply.
    """

    dialect: str
    packet_bytes_max: int
    inbox_messages_max: int
    inbox_bytes_max: int


class Link(Generic[Item]):
    """One connection: not yet connected, connected, closed."""

    def __init__(self, address: str | None, losses: Losses, options: LinkOptions) -> None:
        """Prepare a connection to `address`, `$SBUS_ADDRESS` or the default, in this order.

        Raises AddressError, or ConfigurationError for invalid options.
        """
        name = options.get("dialect", "slash")
        if name not in DIALECTS:
            raise ConfigurationError(f"there is no dialect {name!r}: use {' or '.join(DIALECTS)}")
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
        """Whether it is connected now; False while the listen queue of the bus is full.

        Raises AddressError.
        """
        try:
            self.sock.connect(self._sockaddr)
        except BlockingIOError:
            return False
        except OSError as error:
            raise connect_error(self.address, error, _ADVICE) from error
        return True

    def close(self) -> None:
        """Close the socket; messages that were not received are gone."""
        self.closed = True
        self.inbox.discard()
        self.inbox.end(Disconnected, "this program has closed the connection")
        self.sock.close()

    # -- packets out ---------------------------------------------------------------------------

    def send_nowait(self, packet: bytes) -> bool:
        """Whether it was sent; False while the bus holds this client back.

        Raises PacketRefused `packet-too-long`, Disconnected when the end is known, and
        BrokenPipeError when the bus is gone, or going: then the reason may still arrive.
        """
        if len(packet) > self._packet_bytes_max:
            raise PacketRefused(
                "packet-too-long",
                f"not sent: the packet would have {len(packet)} bytes, at most "
                f"{self._packet_bytes_max} are allowed; send it in parts",
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

    def control_packet(
        self, key: bytes | str, payload: bytes | str | None
    ) -> tuple[bytes, Requests | None]:
        """A control message, and the kind of request that it is, if the bus replies to it.

        Raises ConfigurationError in the dot dialect.
        """
        self.must_have_control_messages()
        name = to_bytes(key)
        packet = encode_control(name, None if payload is None else to_bytes(payload))
        return packet, {controls.WHOAMI: self.barrier, controls.ME: self.inbox.me}.get(name)

    def must_have_control_messages(self) -> None:
        """Raise ConfigurationError in the dot dialect."""
        if not self.dialect.has_control_messages:
            raise ConfigurationError(
                f"the {self.dialect.name} dialect has no control messages: "
                "there is neither whoami nor me"
            )

    def raise_reason(self) -> NoReturn:
        """Raise why the bus accepts nothing more, as far as it has said so."""
        self.inbox.raise_end()
        raise Disconnected("the bus accepts nothing more from this client and gave no reason")

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
                # Reported once, before the packets that are still there and the end.
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
    """A non-blocking socket that can send packets of this size.

    Raises ConfigurationError when the kernel does not allow that.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"cannot open a socket: {error.strerror}") from error
    needed = packet_bytes_max + PACKET_OVERHEAD_BYTES
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < needed:
        # The kernel limits the value to its ceiling, and then doubles it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, needed // 2 + 1)
        granted = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        if granted < needed:
            sock.close()
            raise ConfigurationError(
                f"packets of {packet_bytes_max} bytes cannot be sent from here: the kernel allows "
                f"{granted} bytes for a socket; lower packet_bytes_max, or set net.core.wmem_max "
                f"to {needed // 2 + 1} or more"
            )
    return sock


def connect_error(address: str, error: OSError, advice: Mapping[int, str]) -> AddressError:
    """Where, why, and what to do, in one line."""
    text = f"cannot connect to {address}: {error.strerror or error}"
    what_to_do = advice.get(error.errno or 0)
    return AddressError(f"{text}: {what_to_do}" if what_to_do else text)


def to_bytes(text: bytes | str) -> bytes:
    """A key, pattern or payload as bytes; text is encoded as UTF-8."""
    return text.encode() if isinstance(text, str) else text


def default_address() -> str:
    """The address of the bus if none is given."""
    return os.environ.get("SBUS_ADDRESS") or DEFAULT_ADDRESS
