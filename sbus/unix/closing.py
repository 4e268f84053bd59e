"""Ending a connection so that the other end can read everything that was sent to it.

When a socket with unread input is closed, the kernel resets the other end, which then loses what it
has not read. So the input is discarded first, with a bounded amount of work. What descriptors the
input carries cannot make this process wait, see `interrupted_waits`. Starting and stopping a timer
takes several times as long as closing a socket, so a socket that carries none does without.
"""

import errno
import select
import socket
import time
from contextlib import AbstractContextManager, nullcontext

from sbus.unix.errno_sets import PEER_GONE
from sbus.unix.fd_passing import may_carry_descriptors
from sbus.unix.interrupted_waits import INTERVAL_SECONDS, interrupt_waits

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
    """Discard unread packets of a non-blocking socket, shut down its input, and discard what came
    meanwhile: up to this number each time. False, and nothing is done, if the other end is closed.

    It stops at a packet whose descriptors take long to close: closing the socket discards the
    packets behind it at once.
    """
    if _has_event(sock, select.POLLHUP):
        return False
    with _interrupt_waits_for(sock):
        may_go_on = _discard(sock, packets_max, _EMPTY_PACKETS_MAX)
        try:
            sock.shutdown(socket.SHUT_RD)
        except OSError as error:
            if error.errno not in PEER_GONE:
                raise
        if may_go_on:
            _discard(sock, packets_max, 0)
    return True


def _discard(sock: socket.socket, packets_max: int, empty_packets_max: int) -> bool:
    """Discard packets, up to this number, or of empty ones in a row; False if closing the
    descriptors of one took long."""
    empty = 0
    try:
        for _ in range(packets_max):
            began_at = time.perf_counter()
            data, _, flags, _ = sock.recvmsg(1)
            if flags & socket.MSG_CTRUNC and time.perf_counter() - began_at > INTERVAL_SECONDS / 2:
                return False
            empty = 0 if data else empty + 1
            if empty > empty_packets_max:
                break
    except OSError as error:
        if error.errno not in _NOTHING_LEFT:
            raise
    return True


def end_connection(sock: socket.socket) -> None:
    """End the connection in both directions, for every copy of the socket."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        if error.errno not in PEER_GONE:
            raise


def shut_down(sock: socket.socket) -> None:
    """End the connection, and close this copy of the socket."""
    end_connection(sock)
    close_promptly(sock)


def close_promptly(sock: socket.socket) -> None:
    """Close a client's socket, whatever its unread packets carry."""
    with _interrupt_waits_for(sock):
        sock.close()


def _interrupt_waits_for(sock: socket.socket) -> AbstractContextManager[None]:
    return interrupt_waits() if may_carry_descriptors(sock) else nullcontext()
