"""The link between a running bus and the program that is to take its place, and what they say.

The new program greets; the old bus answers with everything that the new one needs to start, or
refuses. The new program starts its workers, and says that it is ready. Then the old bus sends its
sockets, and files with records: while it serves, so that the new one can prepare, as often as much
has changed; and once when its workers are frozen.

    old bus                                           new program
                                                      Hello
    Offer (listening sockets, files)
                                                      Ready
    Sockets, RecordsOfClients, RecordOfBus            Prepared, several times
    Sockets, RecordsOfClients, RecordOfBus            Adopted
    Commit                                            Serving

Until `Commit` the old bus can go on, and does so if the link closes or the new program says
`Failed`. `Abort` ends the new program. Once the new program has said `Adopted`, the end of the old
bus's front is as good as `Commit`: its workers are frozen, and end as well.
"""

import os
import socket
from contextlib import suppress
from typing import Final

import msgspec
import trio

from sbus.broker.ipc.client_record import VERSION
from sbus.broker.ipc.room import wait_for_room
from sbus.errors import SbusError
from sbus.unix.fd_passing import FDS_MAX, receive_owning_fds, send_borrowing_fds

SOCKETS_PER_PACKET: Final = 200
"""The kernel allows 253 descriptors."""
_PACKET_BYTES_MAX: Final = 64 * 1024
_LEAVING_SECONDS_MAX: Final = 2.0


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The new program can read records of this version."""

    version: tuple[int, int] = VERSION
    program: str = ""
    """Its version, for people."""
    pid: int = 0
    """Of its front."""


class FileRecord(msgspec.Struct, frozen=True, array_like=True):
    """A file that is to be removed at the end of the bus: its path, device and inode."""

    path: str
    device: int
    inode: int


class Offer(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What the new program needs to start. The listening socket of the bus and a pidfd of its front
    come along, then the admin socket, the pidfile and the remover's pipe, if there are these."""

    version: tuple[int, int] = VERSION
    has_admin_listener: bool
    has_pidfile: bool
    has_remover: bool
    is_inherited: bool
    """Whether a service manager has the listening sockets, too."""
    dialect: str
    """Its name. The new bus has to have the same, because keys and patterns mean nothing in
    another one."""
    files: list[FileRecord]
    owner: tuple[int, int, tuple[int, ...]]
    """Who started the bus: user, group and supplementary groups."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The new program has started its workers."""


class Sockets(msgspec.Struct, frozen=True, tag=True):
    """Sockets of connections come along."""


class RecordsOfClients(msgspec.Struct, frozen=True, tag=True):
    """A `records_file` comes along."""


class RecordOfBus(msgspec.Struct, frozen=True, tag=True):
    """A file with a `BusRecord` comes along. All sockets and records that it is about were sent."""

    is_final: bool


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The new bus has room for all clients that it knows of."""


class Adopted(msgspec.Struct, frozen=True, tag=True):
    """The new bus has restored all clients, and waits to serve them."""


class Commit(msgspec.Struct, frozen=True, tag=True):
    """The new bus serves the clients from now on. The old one touches none of them any more."""


class Serving(msgspec.Struct, frozen=True, tag=True):
    """The new bus serves, and has the pidfile."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The old bus goes on, and why."""

    why: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The new program cannot take over, and why."""

    why: str


FromOld = Offer | Sockets | RecordsOfClients | RecordOfBus | Commit | Abort
FromNew = Hello | Ready | Prepared | Adopted | Serving | Failed

_encoder: Final = msgspec.msgpack.Encoder()
_old_decoder: Final = msgspec.msgpack.Decoder(FromOld)
_new_decoder: Final = msgspec.msgpack.Decoder(FromNew)


class UpgradeFailed(SbusError):
    """Another bus does not take the place of this one."""


def send(sock: socket.socket, message: FromOld | FromNew, *fds: int) -> None:
    """Send a message with copies of descriptors. Raises OSError."""
    send_borrowing_fds(sock, _encoder.encode(message), list(fds))


async def report_serving(sock: socket.socket) -> None:
    """Tell the old bus that this process serves, and wait until it leaves. Closes the link."""
    with sock, suppress(BrokenPipeError, ConnectionResetError):
        await send_when_possible(sock, Serving())
        with trio.move_on_after(_LEAVING_SECONDS_MAX):
            await trio.lowlevel.wait_readable(sock)


def receive_from_old(sock: socket.socket) -> tuple[FromOld | None, list[int]]:
    """The next message of the old bus, None at its end, and the descriptors that came along, which
    the caller closes. Raises OSError, DescriptorsLost, msgspec.DecodeError."""
    data, fds = _receive(sock, SOCKETS_PER_PACKET)
    return (_old_decoder.decode(data) if data else None), fds


def receive_from_new(sock: socket.socket) -> FromNew | None:
    """The next message of the new program, None at its end. Raises OSError,
    msgspec.DecodeError."""
    data, fds = _receive(sock, FDS_MAX)
    for fd in fds:
        os.close(fd)
    return _new_decoder.decode(data) if data else None


def _receive(sock: socket.socket, fds_max: int) -> tuple[bytes, list[int]]:
    packet = receive_owning_fds(sock, _PACKET_BYTES_MAX, fds_max)
    if packet[0]:
        return packet
    # A reset is reported before the last messages.
    return receive_owning_fds(sock, _PACKET_BYTES_MAX, fds_max)


async def send_when_possible(sock: socket.socket, message: FromOld | FromNew, *fds: int) -> None:
    """The same for a socket that does not block. Raises OSError."""
    while True:
        try:
            send(sock, message, *fds)
            return
        except BlockingIOError:
            await wait_for_room(sock)
