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

NAME_TAKEN = "name-taken"
NAME_RETRY_SECONDS = 0.02
"""Pause before asking again for a name that the bus says is taken."""
NAME_ATTEMPTS_MAX = 100


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
    yield from _set_again(link, reconnection.settings(), reconnection.name)
    yield from _take_name_again(link, reconnection.name)
    if link.has_ended:
        return
    link.inbox.feed_reconnected(link.interruption)
    reconnection.note_made()
    if patterns := reconnection.subscriptions():
        # A program that learns of the new connection misses nothing that is published after that.
        yield from _set_again(link, patterns, None)
    link.is_lost = link.has_ended


def _set_again(link: Link[Any], packets: list[bytes], name: bytes | None) -> Iterator[Wait]:
    """Send these, and wait until the bus has processed them, or has gone; `name` is the one of them
    to which it replies."""
    request = link.barrier.encode()
    if name in packets:
        link.inbox.names.note_repeated()
    yield from _send_again(link, [*packets, request])
    ticket = link.note_request(request, link.barrier)
    while not (link.has_ended or link.barrier.is_settled(ticket)):
        if not link.read_nowait(1):
            yield from _wait(link, "readable")


def _take_name_again(link: Link[Any], packet: bytes | None) -> Iterator[Wait]:
    """Try again while the bus has not noticed the end of the connection that had the name."""
    names = link.inbox.names
    for _ in range(NAME_ATTEMPTS_MAX):
        refused = names.refused_again
        if packet is None or link.has_ended or refused is None or refused.code != NAME_TAKEN:
            break
        yield from _wait(link, NAME_RETRY_SECONDS)
        yield from _set_again(link, [packet], packet)
    if names.refused_again is not None and not link.has_ended:
        link.inbox.add_refusal(names.refused_again)


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
