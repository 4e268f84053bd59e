"""Making a lost connection again, step by step, without waiting."""

from collections.abc import Iterator
from typing import Any

from sbus.client.link import (
    CONNECT_RETRY_SECONDS,
    READ_PACKETS_MAX,
    SEND_RETRY_SECONDS,
    Link,
)
from sbus.client.reconnection import Reconnection, Wait
from sbus.client.sockets import BUS_ABSENT
from sbus.errors import AddressError, Disconnected


def reconnect(link: Link[Any]) -> Iterator[Wait]:
    """Make a lost connection again; yields what to wait for before it goes on.

    If that is not possible, the connection ends with the reason. May be given up at any time, and
    begun again. Raises Disconnected, ConfigurationError.
    """
    assert link.reconnection is not None
    denied = False
    while link.is_lost:
        yield from _wait(link, link.reconnection.next_delay())
        try:
            yield from _connect_again(link, link.reconnection)
        except AddressError as error:
            # A bus gives its socket to a group after it has made it; so look twice.
            cause = error.__cause__
            is_absent = isinstance(cause, OSError) and cause.errno in BUS_ABSENT
            if denied and not is_absent:
                link.inbox.end(Disconnected, f"{link.interruption}; {error}")
            denied = not is_absent


def _connect_again(link: Link[Any], reconnection: Reconnection) -> Iterator[Wait]:
    link.replace_socket()
    while not link.connect_nowait():
        yield from _wait(link, CONNECT_RETRY_SECONDS)
    request = link.barrier.encode()
    link.inbox.names.note_repeated(reconnection.names_repeated)
    yield from _send_again(link, [*reconnection.settings(), request])
    ticket = link.barrier.sent(request)
    while not (link.has_ended or link.barrier.is_settled(ticket)):
        if not link.read_nowait(1):
            yield from _wait(link, "readable")
    if link.has_ended:
        return
    link.inbox.feed_reconnected(link.interruption)
    yield from _send_again(link, reconnection.subscriptions())
    if not link.has_ended:
        link.is_lost = False
        reconnection.note_made()


def _send_again(link: Link[Any], packets: list[bytes]) -> Iterator[Wait]:
    """Send these packets; if the bus is gone, the reason may still arrive.

    The bus reads no further while its notices fill the socket. So this reads meanwhile.
    """
    for packet in packets:
        try:
            while not link.has_ended and not link.send_unrecorded(packet):
                if not link.read_nowait(READ_PACKETS_MAX):
                    yield from _wait(link, SEND_RETRY_SECONDS)
        except BrokenPipeError:
            while not link.has_ended:
                if not link.read_nowait(1):
                    yield from _wait(link, "readable")


def _wait(link: Link[Any], wait: Wait) -> Iterator[Wait]:
    """Yield; raise that the connection has ended for good, before or meanwhile."""
    link.inbox.raise_end()
    yield wait
    link.inbox.raise_end()
