"""What the front of a bus knows of it, for another bus that takes its place.

With the snapshots of the workers this is everything that a bus is, but for the sockets. A socket
is recognised by the number that the kernel gave it (`SO_COOKIE`). The version of this record is
that of the records of clients.
"""

import os
from typing import Final

import msgspec

from sbus.broker.ipc.client_record import VERSION, check_version
from sbus.shared.account_record import AccountRecord
from sbus.unix.credentials import Credentials
from sbus.unix.memfd import make_memfd


class ConnectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A client, as the front knows it."""

    number: int
    cookie: int
    """Of its socket."""
    credentials: Credentials
    connected_at: float
    """Seconds since 1970."""
    worker: int


class UserRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A user that has an account, or limits that an administrator has changed."""

    account: AccountRecord
    limits: dict[str, int | float] | None = None
    """Those that an administrator has changed."""
    has_account: bool = True


class BusRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A whole bus."""

    version: tuple[int, int] = VERSION
    clients: list[ConnectionRecord] = []
    waiting_cookies: list[int] = []
    """Of the sockets of connections that wait for admission."""
    admitted: int = 0
    """How many clients there have been."""
    refused: dict[str, int] = {}
    """Connections that were refused, by code."""
    users: list[UserRecord] = []
    """First those that have accounts, in the order in which these were opened."""
    counters: list[dict[str, int]] = []
    """Of each worker."""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(BusRecord)


def write_owning_memfd(record: BusRecord) -> int:
    """A new memfd that holds this record; the caller closes it. Raises OSError."""
    return make_memfd("sbus-bus-record", _encoder.encode(record))


def take_memfd(memfd: int) -> BusRecord:
    """The record in a memfd, which is closed. Raises UnknownVersion."""
    try:
        record = _decoder.decode(os.pread(memfd, os.fstat(memfd).st_size, 0))
    finally:
        os.close(memfd)
    check_version(record.version)
    return record
