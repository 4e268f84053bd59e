"""The door: accepting connections, and who may come in.

Only named errors are survived. Those that mean "this one connection failed" are skipped; those that
mean "out of descriptors or memory" make the door wait until a client leaves or a moment passes,
while whoever knocks stands in the kernel's listen queue. Anything else is a bug and escapes.

This module does not know what happens to a client that was let in.
"""

import errno
import os
import resource
import socket

import trio

from sbus.broker.complaints import Complaints
from sbus.broker.settings import BusSettings
from sbus.unix.credentials import Credentials, peer_credentials, peer_groups
from sbus.unix.open_files import watched_processes_max

_CONNECTION_FAILED = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPERM, errno.EPROTO})
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_BACK_OFF_SECONDS = 0.5
_DESCRIPTORS_PER_WORKER = 3
"""A link, the end of it that is on its way to the worker, and a pidfd."""
_DESCRIPTORS_SPARE = 12
"""The event loop, and whatever the standard library opens for a moment."""


class Door:
    """Lets clients in from a listening socket, which it borrows."""

    def __init__(
        self, listener: socket.socket, settings: BusSettings, complaints: Complaints
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._settings = settings
        self._complaints = complaints
        self._room = trio.Event()
        self._clients = 0
        self._clients_max = _clients_max(settings.workers)

    async def next_client(self) -> tuple[socket.socket, Credentials]:
        """The next client that may come in; the caller owns its socket."""
        while True:
            if self._clients >= self._clients_max:
                await self._back_off(
                    f"{self._clients} clients are as many as the limit of open files allows"
                )
                continue
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._listener)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    await self._back_off(os.strerror(error.errno or 0))
                elif error.errno not in _CONNECTION_FAILED:
                    raise
            else:
                credentials = self._admit(sock)
                if credentials is not None:
                    self._clients += 1
                    return sock, credentials
                await trio.lowlevel.checkpoint()

    async def _back_off(self, why: str) -> None:
        self._complaints.complain("accept", 0, f"cannot accept connections for now: {why}")
        self._room = trio.Event()
        with trio.move_on_after(_BACK_OFF_SECONDS):
            await self._room.wait()

    def client_left(self) -> None:
        """A client has left, and with it a descriptor."""
        self._clients -= 1
        self._room.set()

    def _admit(self, sock: socket.socket) -> Credentials | None:
        """The credentials of a client that may come in; any other is closed."""
        credentials = peer_credentials(sock)
        if self._may_enter(sock, credentials):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes(self._settings))
            return credentials
        self._complaints.complain(
            "not-admitted",
            credentials.uid,
            f"refused connection of uid {credentials.uid}, pid {credentials.pid}",
        )
        sock.close()
        return None

    def _may_enter(self, sock: socket.socket, credentials: Credentials) -> bool:
        uids = self._settings.admit_uids
        if uids is None or credentials.uid in uids:
            return True
        gids = self._settings.admit_gids
        return bool(gids) and (credentials.gid in gids or not gids.isdisjoint(peer_groups(sock)))


def _clients_max(workers: int) -> int:
    """Clients that leave enough descriptors to replace every worker, and some for the rest.

    One worker may have all of them, and watches processes of theirs besides.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    reserve = _DESCRIPTORS_PER_WORKER * workers + _DESCRIPTORS_SPARE
    reserve += watched_processes_max()
    return max(1, limit - in_use - reserve)


_PACKET_OVERHEAD_BYTES = 32
"""What the kernel takes off SO_SNDBUF before it compares a packet with it."""


def send_buffer_bytes(settings: BusSettings) -> int:
    """SO_SNDBUF to ask for, so that twice of it, which the kernel sets, takes any packet."""
    limits = settings.limits
    half = (limits.packet_bytes_max + _PACKET_OVERHEAD_BYTES + 1) // 2
    return max(limits.socket_buffer_bytes, half)


def packet_bytes_carried(settings: BusSettings) -> int:
    """The largest packet that this kernel takes from a socket of this bus."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes(settings))
        effective = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    return effective - _PACKET_OVERHEAD_BYTES
