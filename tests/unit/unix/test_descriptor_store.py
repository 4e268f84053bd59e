"""What descriptors that a service manager passes are, by their names."""

import os
import socket
from collections.abc import Iterator

import pytest

from sbus.unix.descriptor_store import (
    NAMES_BYTES_MAX,
    StoredDescriptors,
    client_name,
    memory_name,
)
from sbus.unix.socket_cookie import socket_cookie

CLIENTS_MAX = 8_192
"""As many as the unit has the service manager keep."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def test_names_are_short_enough_for_the_clients_of_the_unit() -> None:
    assert CLIENTS_MAX * (len(client_name(10**12)) + 1) < NAMES_BYTES_MAX


def test_clients_and_memories_are_told_apart(pair: tuple[socket.socket, socket.socket]) -> None:
    newest, oldest = (os.memfd_create("test") for _ in range(2))
    stored = StoredDescriptors.of(
        [
            (memory_name(2**60), newest),
            (client_name(300), os.dup(pair[0].fileno())),
            (memory_name(7), oldest),
            (client_name(12), os.dup(pair[1].fileno())),
        ]
    )
    assert list(stored.memories.items()) == [(7, oldest), (2**60, newest)]
    assert list(stored.clients) == [12, 300]
    assert socket_cookie(stored.clients[300]) == socket_cookie(pair[0])
    assert not any(os.get_inheritable(fd) for fd in (newest, stored.clients[12].fileno()))
    stored.end_connections()
    assert pair[0].recv(1) == b""
    os.close(oldest)
    os.close(newest)


@pytest.mark.parametrize("name", ["", "@", "@m", "@x", "1", "@-1", "@1 ", "@m1m", "@" + "f" * 17])
def test_what_has_another_name_is_closed(name: str) -> None:
    fd = os.memfd_create("test")
    assert StoredDescriptors.of([(name, fd)]) == StoredDescriptors()
    assert not is_open(fd)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, None])
def test_a_client_has_a_socket_of_packets(kind: socket.SocketKind | None) -> None:
    fd = os.memfd_create("test") if kind is None else socket.socket(socket.AF_UNIX, kind).detach()
    assert StoredDescriptors.of([(client_name(1), fd)]) == StoredDescriptors()
    assert not is_open(fd)


def test_of_two_memories_with_one_name_one_is_closed() -> None:
    first, second = (os.memfd_create("test") for _ in range(2))
    stored = StoredDescriptors.of([(memory_name(1), first), (memory_name(1), second)])
    assert stored.memories == {1: first}
    assert not is_open(second)
    os.close(first)


def test_of_two_clients_with_one_name_one_is_closed(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    first, second = (os.dup(sock.fileno()) for sock in pair)
    stored = StoredDescriptors.of([(client_name(1), first), (client_name(1), second)])
    assert stored.clients[1].fileno() == first
    assert not is_open(second)
    stored.end_connections()
