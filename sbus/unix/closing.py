"""Ending a connection so that the other end can read everything that was sent to it.

When a socket with unread input is closed, the kernel resets the other end, which then loses what it
has not read. So the input is discarded first, with a bounded amount of work.
"""

import errno
import select
import socket

from sbus.unix.errno_sets import PEER_GONE

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


def discard_unread(sock: socket.socket, packets_max: int) -> None:
    """Discard the unread packets of a non-blocking socket, and shut down its input; not if the
    other end is closed, because nobody would notice."""
    if _has_event(sock, select.POLLHUP):
        return
    try:
        empty = 0
        for _ in range(packets_max):
            empty = 0 if sock.recv(1) else empty + 1
            if empty > _EMPTY_PACKETS_MAX:
                break
    except OSError as error:
        if error.errno not in _NOTHING_LEFT:
            raise
    try:
        sock.shutdown(socket.SHUT_RD)
        while sock.recv(1):
            pass
    except OSError as error:
        if error.errno not in _NOTHING_LEFT:
            raise


def shut_down(sock: socket.socket) -> None:
    """End the connection in both directions, for every copy of the socket, and close this one."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno not in PEER_GONE:
            raise
    sock.close()
