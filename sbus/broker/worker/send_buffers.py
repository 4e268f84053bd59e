"""The kernel's send buffers for the clients of one worker, on their users' accounts.

What a client does not read lies in its socket, in memory of the kernel. So a client begins with a
small buffer. When that is full, or a packet is larger, the client gets a large one, if its user's
account has room: as much as for backlogs. Without room it keeps the small one, and more messages
wait in its backlog, where they are counted. A large buffer becomes small again at a heartbeat, or
when the user needs the room, once its content would fit.

    kept by the kernel for a user  <=  small buffers + SOCKET_BYTES of its account,
                                       and one packet for each of its clients
"""

import socket
from itertools import islice
from typing import NamedTuple

from sbus.limits import Limits
from sbus.shared.accounts import SOCKET_BYTES, Account
from sbus.unix.send_buffer import large_buffer_bytes, small_buffer_bytes, unread_bytes

_LOOKED_AT_MAX = 8
"""Large buffers that are looked at when there is no room for another one, once in a heartbeat if
that makes none."""


class _LargeBuffer(NamedTuple):
    counted_bytes: int
    """On the account."""
    small_bytes: int
    """SO_SNDBUF before, and afterwards."""


class SendBuffers:
    """The large buffers of one worker's clients."""

    def __init__(self) -> None:
        self._large: dict[Account, dict[socket.socket, _LargeBuffer]] = {}
        self._without_room: set[Account] = set()
        """Accounts whose buffers were looked at in vain since the last heartbeat or release."""

    def enlarge(self, sock: socket.socket, account: Account, limits: Limits) -> bool:
        """Give a client a large buffer; False when it has one, or its user has no room for it."""
        more = _more_bytes(limits)
        buffers = self._large.setdefault(account, {})
        if sock in buffers or not more:
            return False
        if not account.has_room_in_sockets(more):
            if account in self._without_room:
                return False
            _shrink(buffers, account, _LOOKED_AT_MAX)
            if not account.has_room_in_sockets(more):
                self._without_room.add(account)
                return False
        _enlarge(buffers, sock, account, limits)
        return True

    def has_large(self, sock: socket.socket, account: Account) -> bool:
        return sock in self._large.get(account, {})

    def restore(self, sock: socket.socket, account: Account, limits: Limits) -> None:
        """A client had a large buffer at another worker: it has one here, room or not."""
        _enlarge(self._large.setdefault(account, {}), sock, account, limits)

    def inherit(self, sock: socket.socket, account: Account, limits: Limits) -> None:
        """A worker that has ended may have left a client a large buffer: it has one here, too."""
        size_bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        if size_bytes > 2 * small_buffer_bytes(limits):
            self.restore(sock, account, limits)

    def shrink_unused(self) -> None:
        """Make all large buffers small whose content would fit."""
        self._without_room.clear()
        for account, buffers in list(self._large.items()):
            _shrink(buffers, account, len(buffers))
            if not buffers:
                del self._large[account]

    def release(self, sock: socket.socket, account: Account) -> None:
        """Make the buffer of a client small, if it is large."""
        buffers = self._large.get(account, {})
        if sock in buffers:
            _release(buffers, sock, account)
            self._without_room.discard(account)


def _more_bytes(limits: Limits) -> int:
    """What a large buffer has room for, beyond a small one."""
    return 2 * (large_buffer_bytes(limits) - small_buffer_bytes(limits))


def _enlarge(
    buffers: dict[socket.socket, _LargeBuffer],
    sock: socket.socket,
    account: Account,
    limits: Limits,
) -> None:
    more = _more_bytes(limits)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, large_buffer_bytes(limits))
    account.count(SOCKET_BYTES, more)
    buffers[sock] = _LargeBuffer(more, small_buffer_bytes(limits))


def _shrink(buffers: dict[socket.socket, _LargeBuffer], account: Account, count: int) -> None:
    """Make those of `count` buffers small that can be; the others are the last next time."""
    for sock in list(islice(buffers, count)):
        if unread_bytes(sock) <= 2 * buffers[sock].small_bytes:
            _release(buffers, sock, account)
        else:
            buffers[sock] = buffers.pop(sock)


def _release(
    buffers: dict[socket.socket, _LargeBuffer], sock: socket.socket, account: Account
) -> None:
    buffer = buffers.pop(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer.small_bytes)
    account.count(SOCKET_BYTES, -buffer.counted_bytes)
