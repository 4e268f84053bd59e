"""The bus whose place this program is to take, and its sockets and files.

Either that bus has started this program, and the environment names the descriptor of the link; or
this program was started with `--take-over`, and asks on the admin socket. If this program fails, it
tells the old bus the reason, and the old bus goes on.
"""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import msgspec

from sbus.broker.ipc.client_record import check_version
from sbus.broker.ipc.upgrade_link import (
    Abort,
    Failed,
    Hello,
    Offer,
    receive_from_old,
    send,
)
from sbus.bus_options import PREDECESSOR_VARIABLE
from sbus.cli.sbusd.sockets import Addresses, Sockets
from sbus.client.admin import AdminConnection
from sbus.errors import ConfigurationError, SbusError
from sbus.protocol.admin import TakeOver
from sbus.protocol.admin_results import TakeOverResult
from sbus.unix.address import FdAddress, address_of
from sbus.unix.bus_files import BusFiles
from sbus.unix.default_address import own_address
from sbus.unix.fd_passing import DescriptorsLost
from sbus.unix.listener import Listener
from sbus.unix.owned_path import OwnedPath
from sbus.unix.users import Identity
from sbus.version import __version__

_ANSWER_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Heritage:
    """What another bus leaves to this one, once it commits."""

    link: socket.socket
    front_pidfd: int
    sockets: Sockets
    files: BusFiles
    owner: Identity
    """Who started the first of all these buses."""


@cache
def link_of_environment() -> socket.socket | None:
    """The link to the bus that has started this program, if one has. Raises ConfigurationError."""
    number = os.environ.pop(PREDECESSOR_VARIABLE, None)
    if number is None:
        return None
    try:
        return socket.socket(fileno=int(number))
    except (ValueError, OSError) as error:
        raise ConfigurationError(
            f"{PREDECESSOR_VARIABLE}={number!a:.60} is no socket of a bus: only a bus that is "
            "upgraded sets it"
        ) from error


def report_failure(link: socket.socket | None, text: str) -> None:
    """Tell the old bus, if it is there, why this program cannot take its place."""
    if link is not None:
        with suppress(OSError):
            send(link, Failed(text))


def inherit(addresses: Addresses, dialect: str) -> Heritage:
    """Greet the old bus, and receive what it leaves, which speaks this dialect. Raises
    SbusError."""
    link = link_of_environment() or _ask_for_link(addresses)
    link.settimeout(_ANSWER_SECONDS_MAX)
    try:
        send(link, Hello(program=__version__, pid=os.getpid()))
        message, fds = receive_from_old(link)
    except OSError as error:
        raise ConfigurationError(f"cannot take over: {error.strerror or error}") from error
    except (DescriptorsLost, msgspec.DecodeError) as error:
        raise ConfigurationError(f"cannot take over: {error}") from error
    if isinstance(message, Abort):
        raise ConfigurationError(f"the old bus called it off: {message.why}")
    if not isinstance(message, Offer):
        raise ConfigurationError("the old bus does not want to be taken over")
    try:
        _check(message, dialect)
    except SbusError as error:
        report_failure(link, str(error))
        raise
    link.setblocking(False)
    return _understood(link, message, fds)


def _check(offer: Offer, dialect: str) -> None:
    """Raise SbusError if this program cannot take the place of that bus."""
    check_version(offer.version)
    if offer.dialect != dialect:
        raise ConfigurationError(
            f"the bus has the dialect '{offer.dialect}', and its clients would not understand "
            f"'{dialect}': stop it, and start it again"
        )


def _ask_for_link(addresses: Addresses) -> socket.socket:
    address = None if addresses.bus is None else addresses.bus.format()
    if isinstance(addresses.bus, FdAddress):
        raise ConfigurationError("--take-over needs the address of a bus that runs")
    admin = None if addresses.admin in (None, "none") else addresses.admin
    connection = AdminConnection(
        address or own_address(),
        address=None if admin is None or isinstance(admin, str) else admin.format(),
        timeout_seconds=_ANSWER_SECONDS_MAX,
    )
    connection.ask(TakeOver(), TakeOverResult)
    return connection.detach()


def _understood(link: socket.socket, offer: Offer, fds: list[int]) -> Heritage:
    numbers = iter(fds)
    bus, front_pidfd = _listener(next(numbers), offer), next(numbers)
    admin = _listener(next(numbers), offer) if offer.has_admin_listener else None
    pidfile_fd = next(numbers) if offer.has_pidfile else None
    remover_fd = next(numbers) if offer.has_remover else None
    paths = [OwnedPath(file.path, file.device, file.inode) for file in offer.files]
    files = BusFiles(paths, pidfile_fd, remover_fd, is_ours=False)
    return Heritage(link, front_pidfd, Sockets(bus, admin), files, Identity(*offer.owner))


def _listener(fd: int, offer: Offer) -> Listener:
    sock = socket.socket(fileno=fd)
    address = address_of(sock.getsockname()).format()
    return Listener(sock, address, None, is_inherited=offer.is_inherited)
