"""Send buffers: what they carry, and what the kernel keeps in them."""

import socket
from collections.abc import Iterator

import pytest

from sbus.limits import Limits
from sbus.unix.send_buffer import (
    large_buffer_bytes,
    packet_bytes_carried,
    small_buffer_bytes,
    unread_bytes,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.mark.parametrize("packet_bytes_max", [1_000, 409_600])
def test_large_buffers_carry_the_largest_packet(
    packet_bytes_max: int, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    limits = Limits(packet_bytes_max=packet_bytes_max)
    assert packet_bytes_carried(limits) >= packet_bytes_max
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, large_buffer_bytes(limits))
    carried = packet_bytes_carried(limits)
    assert ours.send(bytes(carried)) == carried
    theirs.recv(1)
    with pytest.raises(OSError, match="too long"):
        ours.send(bytes(carried + 1))


@pytest.mark.parametrize("bytes_max", [4_096, 212_992])
def test_a_small_buffer_is_not_larger_than_a_large_one(bytes_max: int) -> None:
    limits = Limits(socket_buffer_bytes=bytes_max, packet_bytes_max=1_000)
    assert small_buffer_bytes(limits) == min(bytes_max, 32_768)
    assert large_buffer_bytes(limits) == bytes_max


def test_unread_bytes_are_what_the_peer_has_not_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    assert unread_bytes(ours) == 0
    ours.send(bytes(100))
    one = unread_bytes(ours)
    assert one > 100
    ours.send(bytes(100))
    assert unread_bytes(ours) == 2 * one
    theirs.recv(100)
    assert unread_bytes(ours) == one
    ours.shutdown(socket.SHUT_RDWR)
    assert unread_bytes(ours) == one, "the peer may still read it"
    theirs.close()
    assert unread_bytes(ours) == 0
