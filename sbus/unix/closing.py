"""Ending a connection so that the other end can read everything that was sent to it.

When a socket with unread input is closed, the kernel resets the other end, which then loses what it
has not read. So the input is discarded first, with a bounded amount of work. Nothing is read that
has descriptors attached, because to drop these may take any time.
"""

import errno
import select
import socket

from sbus.unix.errno_sets import PEER_GONE, SOCKET_FULL
from sbus.unix.fd_passing import has_descriptors, may_carry_descriptors

_NOTHING_LEFT = PEER_GONE | {errno.EAGAIN}
_EMPTY_PACKETS_MAX = 16
"""After so many empty packets in a row the end is taken for the end: reading it again a thousand
times takes as long as admitting a client."""


def is_hung_up(sock: socket.socket) -> bool:
    """Whether the other end will send no more; this tells the end from an empty packet."""
    return _has_event(sock, select.POLLRDHUP)


def _has_event(sock: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return any(events & event for _, events in poll.poll(0))


def discard_unread(sock: socket.socket, packets_max: int) -> bool:
    """Discard unread packets of a socket, shut down its input, and discard what came
    meanwhile: up to this number each time. False, and nothing is done, if the other end is closed.

    It stops at a packet with descriptors, and then the other end may be reset. No other process may
    read from this socket.
    """
    if _has_event(sock, select.POLLHUP):
        return False
    carries = may_carry_descriptors(sock)
    may_go_on = _discard(sock, carries, packets_max, _EMPTY_PACKETS_MAX)
    try:
        sock.shutdown(socket.SHUT_RD)
    except OSError as error:
        if error.errno not in PEER_GONE:
            raise
    if may_go_on:
        _discard(sock, carries, packets_max, 0)
    return True


def _discard(sock: socket.socket, carries: bool, packets_max: int, empty_packets_max: int) -> bool:
    """Discard packets, up to this number, or of empty ones in a row; False if there is one that has
    descriptors."""
    empty = 0
    try:
        for _ in range(packets_max):
            if carries and has_descriptors(sock):
                return False
            empty = 0 if sock.recv(1, socket.MSG_DONTWAIT) else empty + 1
            if empty > empty_packets_max:
                break
    except OSError as error:
        if error.errno not in _NOTHING_LEFT:
            raise
    return True


def send_last(sock: socket.socket, packet: bytes) -> bool:
    """Send a last packet; False while there is no room for it. To a peer
    that has left, and while the kernel has no memory, it is not sent."""
    try:
        sock.send(packet, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in PEER_GONE | SOCKET_FULL:
            raise
    return True


def end_connection(sock: socket.socket) -> None:
    """End the connection in both directions, for every copy of the socket."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno not in PEER_GONE:
            raise
